"""`tandem status` and `tandem top` beside one `tandem up`, as a person runs them."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from urllib.request import urlopen

import pytest

from tests.running_up import TANDEM, Up, running_up

LEAVE_SCREEN = b"\x1b[?1049l"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """After one request whose drafts are waited for: others may come too late for a fast target."""
    with running_up("--no-ray") as up:
        options = ("--rule", "reject", "--temperature", "1", "--max-new-tokens", "200")
        done = up.run("generate", *options, "Once upon a time")
        assert done.returncode == 0, done.stderr
        yield up


def test_status_shows_the_last_minute_and_the_round_workers(up: Up) -> None:
    shown = up.run("status")
    assert shown.returncode == 0, shown.stderr
    assert "round workers: 1 of 1 connected, 0 requests\n" in shown.stdout
    figures = r"last minute: [\d.]+ tokens/s, acceptance rate \d+ %, mean acceptance length [\d.]+;"
    assert re.search(figures, shown.stdout)
    assert "; 1 finished, 0 failed\n" in shown.stdout
    assert re.search(r"^drafter .* ms  +\d+ %$", shown.stdout, re.MULTILINE)


def test_top_prints_one_screen(up: Up) -> None:
    shown = up.run("top", "--once")
    assert (shown.returncode, shown.stderr) == (0, "")
    for word in ("verifier", "drafter", "acceptance rate", "goodput", "no requests now", "█"):
        assert word in shown.stdout


def test_the_status_page_is_beside_the_metrics(up: Up) -> None:
    """Both forms show the request that was served, and the replicas."""
    (metrics,) = re.findall(r"orchestrator +\S+  metrics (\S+)/metrics", up.printed)
    with urlopen(f"{metrics}/", timeout=10) as answer:
        page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert page.count("<svg") == 4 and page.count("float32") == 2 and ">1 finished<" in page
    with urlopen(f"{metrics}/status.json", timeout=10) as answer:
        shown = json.loads(answer.read())
    (model,) = shown["models"]
    assert shown["problems"] == [] and model["history"]
    assert [each["serving"] for each in model["verifiers"] + model["drafters"]] == [True, True]
    assert model["lastMinute"]["requestsFinished"] == 1
    (drafter,) = model["drafters"]
    rate = model["lastMinute"]["acceptanceRate"]
    assert int(drafter["draftTokens"]) > 0 and drafter["acceptanceRate"] == pytest.approx(rate)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_top_well(up: Up) -> None:
    """In a terminal; the screen is as it was before."""
    ours, its = pty.openpty()
    command = [*TANDEM, "top", "--every", "0.2", "--address", up.address]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        while part := read(ours):
            seen, shown = b"acceptance rate" in shown, shown + part
            if not seen and b"acceptance rate" in shown:
                process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    os.close(ours)
    assert b"acceptance rate" in shown and b"Traceback" not in shown
    assert shown.rindex(LEAVE_SCREEN) > shown.rindex(b"acceptance rate")


def read(terminal: int) -> bytes:
    """What a program shows next; nothing when it has ended, or shows nothing for long."""
    with suppress(OSError):
        if select.select([terminal], [], [], 30.0)[0]:
            return os.read(terminal, 1 << 16)
    return b""


@pytest.mark.parametrize(("role", "code"), [("verifier_service", 1), ("drafter_service", 0)])
def test_status_and_top_fail_while_the_verifier_is_frozen(up: Up, role: str, code: int) -> None:
    """And say why; a drafter is not needed."""
    frozen = up.service(role)
    frozen.suspend()
    try:
        for command in (("status",), ("top", "--once")):
            run = up.run(*command)
            assert run.returncode == code, run.stdout + run.stderr
            assert "no answer in 2 s" in run.stdout
    finally:
        frozen.resume()
    for _ in range(30):
        run = up.run("status")
        if run.returncode == 0 and "no answer" not in run.stdout:
            break
    assert run.returncode == 0 and "no answer" not in run.stdout
