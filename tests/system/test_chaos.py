"""A chaos run that is interrupted is judged by what has happened."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = "-m tandem.benchmarks.chaos --faults 1000 --kind slow --streams 2 --tokens 40 --history"


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_run_is_judged(tmp_path: Path) -> None:
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
