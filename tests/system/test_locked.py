"""`tandem up --tls`: a Tandem that only the owner of its certificates can use."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tandem.orchestrator.cli import certificates, terminal
from tests.system.test_documents import SERVES, serving

TANDEM = [sys.executable, "-P", "-m", "tandem"]


@dataclass(frozen=True)
class Locked:
    """Where it is, and its certificates."""

    environment: dict[str, str]
    folder: Path
    address: str

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of `tandem`."""
        return subprocess.run(
            [*TANDEM, *words], env=self.environment, capture_output=True, text=True, timeout=120
        )


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"XDG_DATA_HOME": str(home), "COLUMNS": "400"}
    command = [*TANDEM, "up", "--tls", "--no-ray", "--port", "0"]
    with serving(command, home, environment) as printed:
        found = SERVES.search(printed)
        assert found, printed
        yield Locked(environment, home / "tandem" / "certificates", found[1])


def test_the_command_that_up_prints_works(
    locked: Locked, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = certificates.flags(locked.folder, certificates.CLIENT)
    terminal.StartProgress(terminal.console(), asking).ready(locked.address)
    found = re.search(r"^Try: tandem (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert found
    done = locked.run(*shlex.split(found[1]), "--max-new-tokens", "4", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time")


def test_nobody_else_is_let_in(locked: Locked) -> None:
    done = locked.run("status", "--address", locked.address)
    assert done.returncode == 1 and done.stderr.startswith("error: nobody answers at")
    assert done.stderr.count("\n") == 1


def test_its_certificates_are_private_and_made_once(locked: Locked) -> None:
    assert locked.folder.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in locked.folder.glob("*-key.pem")} == {0}
