"""`tandem up` on free ports, as a person runs it; stopping it must leave nothing."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from examples import demo

TANDEM = [sys.executable, "-m", "tandem"]


@dataclass(frozen=True)
class Up:
    """What runs: its process, its client API, what it printed until it served, and the mark that
    all its processes have in their environment.
    """

    process: subprocess.Popen[str]
    address: str
    printed: str
    mark: str

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of a client."""
        words = [*TANDEM, command, "--address", self.address, *arguments]
        return subprocess.run(words, capture_output=True, text=True, timeout=120)

    def service(self, role: str) -> psutil.Process:
        """The process of a role."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (found,) = [child for child in children if f"tandem.{role}" in child.cmdline()]
        return found


@contextmanager
def running_up(*flags: str) -> Iterator[Up]:
    """Until the scope ends."""
    mark = secrets.token_hex(8)
    environment = os.environ | {"TANDEM_DEMO": mark}
    command = [*TANDEM, "up", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        output = ""
        try:
            while not (found := re.search(r"client API on (\S+)\.", output)):
                line = process.stdout.readline()
                assert line, output
                output += line
            yield Up(process, found[1], output, mark)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
        assert status == 0
    assert demo.left_running(mark) == []
