"""With `tandem up --tls`, only the owner of its certificates can use the system."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from tandem.orchestrator.cli import certificates, terminal
from tests.documents import ROOT, blocks
from tests.running_up import TANDEM, serving

pytestmark = pytest.mark.long("starts all services with TLS, and programs beside them")


@dataclass(frozen=True)
class Locked:
    """The addresses of the system, and its certificates."""

    environment: dict[str, str]
    folder: Path
    address: str

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `tandem`."""
        return subprocess.run(
            [*TANDEM, *words], env=self.environment, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    home = tmp_path_factory.mktemp("home")
    environment = os.environ | {"HOME": str(home), "COLUMNS": "400"}
    environment.pop("XDG_DATA_HOME", None)
    command = [*TANDEM, "up", "--tls", "--no-ray", "--port", "0"]
    with serving(command, home, environment) as up:
        yield Locked(environment, home / ".local/share/tandem/certificates", up.address)


def test_the_command_that_up_prints_works(
    locked: Locked, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = certificates.flags(locked.folder, certificates.CLIENT)
    terminal.StartProgress(terminal.console(), asking).ready(locked.address)
    found = re.search(r"^Generate: tandem (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert found
    done = locked.run(*shlex.split(found[1]), "--max-new-tokens", "4", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time")


def test_the_program_of_the_page_works(locked: Locked) -> None:
    (program,) = [b.text for b in blocks(ROOT / "docs" / "security.md") if b.kind == "python"]
    program = program.replace("localhost:50051", locked.address)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=locked.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize("words", ["status", "bench serve --num-prompts 2 --max-tokens 4"])
def test_commands_know_who_asks_from_the_environment(locked: Locked, words: str) -> None:
    asking = certificates.tls_of(locked.folder, certificates.CLIENT)
    known = {f"TANDEM_TLS_{kind.upper()}": str(path) for kind, path in asdict(asking).items()}
    here = replace(locked, environment=locked.environment | known)
    done = here.run(*words.split(), "--address", locked.address)
    assert done.returncode == 0, done.stderr


def test_nobody_else_is_let_in(locked: Locked) -> None:
    done = locked.run("status", "--address", locked.address)
    assert done.returncode == 1 and done.stderr.startswith("error: nobody answers at")
    assert done.stderr.count("\n") == 1 and "TLS" in done.stderr
