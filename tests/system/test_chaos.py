"""An interrupted chaos run is judged by what has happened; a fault lasts until its last pass ends;
a wrong path is refused.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.benchmarks.chaos import history, victim
from tandem.benchmarks.chaos.history import Healed, Struck
from tests.waiting import wait_until

pytestmark = pytest.mark.long("runs the benchmark `chaos`, which starts and breaks a fleet")

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
            wait_until(lambda: chaos.poll() or '"kind": "healed"' in file.read_text())
            assert chaos.poll() is None
        finally:
            chaos.send_signal(signal.SIGINT)
        said, errors = chaos.communicate()
    assert chaos.returncode == 1
    assert "0 lost, 0 duplicated, 0 changed, 0 errors" in said
    assert "interrupted before the last fault" in errors
    again = subprocess.run([*command[:-2], "--check", str(file)], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert said.endswith(again.stdout) and again.stdout
    events = list(history.read(file))
    struck = next(event for event in events if isinstance(event, Struck))
    healed = next(event for event in events if isinstance(event, Healed))
    seconds = float(struck.which.split()[-2])  # rounded to tenths
    assert healed.at - struck.at > seconds - 0.05 + victim.DELAYS[victim.CRAWL]


def test_a_wrong_path_is_one_line() -> None:
    command = [sys.executable, "-m", "tandem.benchmarks.chaos", "--history", "nowhere/history"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: nowhere/history: No such file")
