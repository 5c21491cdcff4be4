"""Log lines are JSON for machines or a console for people, and contain nothing of a request's
text.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

PROGRAM = """
import structlog
from tandem.protos.service.process import configure_logging
configure_logging("info", {form!r})
log = structlog.get_logger()
log.debug("too little")
log.info("an event", tokens=3)
def fails(prompt):
    return 1 / 0
try:
    fails("once upon a secret time")
except ZeroDivisionError as error:
    log.error("a call failed", exc_info=error)
"""


@cache
def logged(form: str | None) -> str:
    """Return what a process without a terminal writes to standard error."""
    words = [sys.executable, "-c", PROGRAM.format(form=form)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def test_outside_of_a_terminal_logs_are_json() -> None:
    event, failure = map(json.loads, logged(None).splitlines())
    assert (event["event"], event["level"], event["tokens"]) == ("an event", "info", 3)
    assert "ZeroDivisionError" in failure["exception"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_format_shows_local_variables(form: str) -> None:
    """Variables may hold a prompt; the code lines of a traceback do not."""
    lines = logged(form)
    assert "ZeroDivisionError" in lines and "an event" in lines and "too little" not in lines
    assert lines.startswith("{") == (form == "json")
    assert form == "json" or "tokens=3" in lines.splitlines()[0]
    shown = lines.replace('fails("once upon a secret time")', "").replace(
        'fails(\\"once upon a secret time\\")', ""
    )
    assert "secret" not in shown
