"""`tandem up` and single services on free ports, run as a person runs them; a stopped `tandem up`
must leave no process behind.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples import demo
from tests.waiting import LIMIT, wait_until

TANDEM = [sys.executable, "-P", "-m", "tandem"]
SERVES = re.compile(r'client API on (\S+)\.|"serving".*"address": "([^"]+)"')


@dataclass(frozen=True)
class Served:
    """A command that serves: its process, the address of its API, and its output until it
    served.
    """

    process: subprocess.Popen[str]
    address: str
    printed: str

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a client."""
        words = [*TANDEM, command, "--address", self.address, *arguments]
        return subprocess.run(words, capture_output=True, text=True)

    def processes(self, role: str) -> list[psutil.Process]:
        """Return the processes of a role that live."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if f"tandem.{role}" in child.cmdline():
                    found.append(child)
        return found


@contextmanager
def serving(
    words: list[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> Iterator[Served]:
    """Run a command that serves while the scope lasts; it must exit with success when it is
    stopped.
    """
    with subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        printed = ""
        try:
            while not (found := SERVES.search(printed)):
                line = process.stdout.readline()
                assert line, f"{words} did not serve: {printed}"
                printed += line
            yield Served(process, found[1] or found[2], printed)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(LIMIT)
        assert status == 0


@contextmanager
def running_up(*flags: str) -> Iterator[Served]:
    """Run `tandem up` while the scope lasts."""
    mark = secrets.token_hex(8)
    environment = os.environ | {"TANDEM_DEMO": mark}
    with serving([*TANDEM, "up", "--port", "0", *flags], environment=environment) as up:
        yield up
    wait_until(lambda: not demo.left_running(mark), "no process of `tandem up` is left")
