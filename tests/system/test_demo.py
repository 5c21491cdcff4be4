"""`make demo`, as a newcomer sees it in a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest
from rich.console import Console

from examples import demo
from examples.demo import Story
from tandem.v1 import orchestrator_pb2 as api
from tests.documents import ROOT
from tests.system.test_command_line import read

MINUTES = 5


def answer(text: str, seconds: float, steps: int) -> api.GenerateResponse:
    return api.GenerateResponse(
        text=text,
        usage=api.Usage(completion_tokens=60),
        timing=api.Timing(total_seconds=seconds),
        speculation=api.SpeculationSummary(num_spec_steps=steps),
    )


def test_the_table_has_both_speeds_by_temperature_and_says_whether_texts_differ() -> None:
    stories = [
        Story(0.0, answer("a", 1.0, 20), answer("a", 2.0, 60)),
        Story(0.0, answer("b", 2.0, 40), answer("b", 4.0, 60)),
        Story(1.0, answer("c", 3.0, 30), answer("d", 3.0, 60)),
    ]
    console = Console(width=120, highlight=False)
    with console.capture() as shown:
        console.print(demo.table(stories))
    assert [" ".join(line.split()) for line in shown.get().splitlines()[2:]] == [
        "0 120 20.0 40.0 2.00 2.00 the same",
        "1 60 20.0 20.0 1.00 2.00 1 differ",
        "all 180 20.0 30.0 1.50 2.00 1 differ",
    ]


@pytest.mark.long("grows a model of 440 MB, and generates with it")
@pytest.mark.timeout(60 * MINUTES)
def test_the_demo_shows_green_drafts_and_both_speeds_and_leaves_nothing() -> None:
    """The drafter drafts always, also on a machine whose cores are busy."""
    ours, its = pty.openpty()
    terminal = {"TERM": "xterm", "COLUMNS": "110"}
    environment = os.environ | terminal | {"TANDEM__DRAFTER__DRAFT_COST": "0"}
    command = ["make", "demo"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=its, stdout=its, stderr=its, env=environment
    ) as process:
        os.close(its)
        shown = b""
        while part := read(ours):
            shown += part
        assert process.wait() == 0, shown.decode()
    os.close(ours)
    text = shown.decode()
    assert text.count("\x1b[32m") > 20, "drafts are green"
    assert len(re.findall(r"[\d.]+ times as fast", text)) == len(demo.STORIES)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert re.search(r"^ *0 +\d+ +[\d.]+ +[\d.]+ +[\d.]+ .*the same", plain, re.MULTILINE)
    assert "no process is left" in plain
