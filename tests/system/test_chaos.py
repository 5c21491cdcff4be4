"""A chaos run that is interrupted is judged by what has happened; a fault lasts as long as its last
pass; a wrong path is refused.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.benchmarks.chaos import history, victim
from tandem.benchmarks.chaos.history import Healed, Struck

COMMAND = "-m tandem.benchmarks.chaos --faults 1000 --kind crawl --streams 2 --tokens 40 --history"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_is_judged_and_a_fault_lasts_as_long_as_its_last_pass(
    tmp_path: Path,
) -> None:
    file = tmp_path / "history"
    file.touch()
    command = [sys.executable, *COMMAND.split(), str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as chaos:
        try:
            deadline = time.monotonic() + 200
            while '"kind": "healed"' not in file.read_text():
                assert chaos.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            chaos.send_signal(signal.SIGINT)
        said, errors = chaos.communicate(timeout=60)
    assert chaos.returncode == 1
    assert "0 lost, 0 duplicated, 0 changed, 0 errors" in said
    assert "interrupted before the last fault" in errors
    again = subprocess.run(
        [*command[:-2], "--check", str(file)], capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 0, again.stderr
    assert said.endswith(again.stdout) and again.stdout
    events = list(history.read(file))
    struck = next(event for event in events if isinstance(event, Struck))
    healed = next(event for event in events if isinstance(event, Healed))
    seconds = float(struck.which.split()[-2])  # rounded to tenths
    assert healed.at - struck.at > seconds - 0.05 + victim.DELAYS[victim.CRAWL]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--check nowhere", "nowhere: No such file"),
        ("--history nowhere/history", "nowhere/history: No such file"),
        ("--target nowhere", "nowhere has no tokenizer.json"),
    ],
)
def test_a_wrong_path_is_one_line(flags: str, problem: str) -> None:
    command = [sys.executable, "-m", "tandem.benchmarks.chaos", *flags.split()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith(f"error: {problem}")
