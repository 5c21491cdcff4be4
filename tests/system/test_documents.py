"""Everything that README and docs/ show works: each fenced command and program is run, in a
checkout of its own, against one `tandem up`; flags and settings are those of the commands.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import yaml
from typer import rich_utils

from tandem.protos.transport import rpc
from tests.documents import ELSEWHERE, GUIDE, ROOT, Block, blocks, code
from tests.running_up import serving

CLIENT_API, HTTP_API = "127.0.0.1:50051", "127.0.0.1:8000"
SERVER = re.compile(r"^(?:\w+=\S+ +)*(?:\.venv/bin/)?tandem +(up|verifier|drafter|orchestrator)\b")
PLACES = {
    "path/to/target": "models/embedded/target",
    "path/to/draft": "models/embedded/draft",
    "verifier-host": "127.0.0.1",
    "drafter-host": "127.0.0.1",
}
ALSO = {"up": ["--port", "0", "--no-ray"], "orchestrator": ["--no-ray"]}
TANDEM = (
    *("up", "generate", "chat", "status", "top", "certs", "distil", "bench serve"),
    *("verifier", "drafter", "orchestrator"),
)
COMMAND = re.compile(rf"\btandem ({'|'.join(TANDEM)})\b|-m ([\w.]+)")
MACHINES = ("kubectl ", "docker ")  # commands that a test must not run
NOT_RUN = ("text", "mermaid", "yaml")
NOT_OURS = (
    "hf ",
    "pip ",
    "make setup TORCH=",  # flags of pip
    "docker ",
    "kubectl ",
    "ray ",
    "serve ",
    "for role",
    "curl ",
    "prometheus ",
    "python deploy/",  # test_monitoring.py
)
RUN = [block for page in GUIDE for block in blocks(page) if block.kind not in NOT_RUN]
HERE = [block for block in RUN if block.commands[0] not in ELSEWHERE]


@dataclass(frozen=True)
class Checkout:
    """A folder as it is after `make setup`, and the Tandem that runs meanwhile."""

    folder: Path
    address: str
    printed: str

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "TANDEM_ADDRESS": self.address, "COLUMNS": "200"}


def checkout(folder: Path) -> Path:
    """Copy everything except hidden files, with a `.venv` that is up to date and has this
    interpreter.
    """
    for path in ROOT.iterdir():
        if not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    for name, words in (("python", ""), ("tandem", " -m tandem")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / ".venv" / "ready").touch()
    return folder


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """Make a checkout, and run `tandem up` in it."""
    folder = checkout(tmp_path_factory.mktemp("checkout"))
    command = [str(folder / ".venv" / "bin" / "tandem"), "up", "--port", "0"]
    with serving(command, folder) as up:
        yield Checkout(folder, up.address, up.printed)


def free_ports(text: str) -> str:
    """Return the same command on free ports; a port that is named twice stays one port."""
    ports = defaultdict[str, str](lambda: str(rpc.free_port("127.0.0.1")))
    return re.sub(
        r"(port |PORT=|127\.0\.0\.1:)(\d+)", lambda found: found[1] + ports[found[2]], text
    )


def run(words: list[str], there: Checkout) -> str:
    """Run a command, which must succeed; return its output."""
    done = subprocess.run(
        words, cwd=there.folder, env=there.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def run_commands(block: Block, there: Checkout) -> str:
    """Run the commands of a block, and those that serve until the last has ended; return the last
    one's output.
    """
    text = "\n".join(block.commands)
    for place, stands_for in PLACES.items():
        text = text.replace(place, stands_for)
    printed = ""
    with ExitStack() as scope:
        for command in free_ports(text).splitlines():
            if not (server := SERVER.match(command)):
                printed = run(["bash", "-euo", "pipefail", "-c", command], there)
                continue
            words = shlex.split(command) + ALSO.get(server[1], [])
            settings = [word for word in words if re.match(r"\w+=", word)]
            environment = there.environment | dict(word.split("=", 1) for word in settings)
            scope.enter_context(serving(words[len(settings) :], there.folder, environment))
    return printed


def shape(printed: str) -> list[str]:
    """Return the words of a text, without figures and line breaks."""
    return re.sub(r"\d+(\.\d+)?", "0", printed).split()


@pytest.mark.long("runs every command and program of every page")
@pytest.mark.parametrize("block", HERE, ids=str)
def test_what_a_reader_is_shown_works(block: Block, there: Checkout) -> None:
    if block.kind == "python":
        found = re.search(r"http://(\S+)/v1", there.printed)
        assert found
        text = block.text.replace(CLIENT_API, there.address).replace(HTTP_API, found[1])
        run([sys.executable, "-P", "-c", text], there)
        return
    printed = run_commands(block, there)
    if block.kind == "console":
        assert shape(printed) == shape(block.output)


def test_blocks_that_are_not_run_here_are_run_by_a_test_that_exists() -> None:
    firsts = [block.commands[0] for block in RUN]
    assert {first: firsts.count(first) for first in ELSEWHERE} == dict.fromkeys(ELSEWHERE, 1)
    for block in HERE:
        assert not [each for each in block.commands if each.startswith(MACHINES)], block
    for test in ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


@cache
def help_of(*words: str) -> frozenset[str]:
    """Return the flags that a command knows."""
    printed = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), suppress(SystemExit):

        def run_here(module: str, *arguments: str) -> None:
            patch.setattr(sys, "argv", [module, *arguments])
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # imported too
                runpy.run_module(module, run_name="__main__")

        # replaces `python -P -m ...`
        patch.setattr(os, "execv", lambda _, command: run_here(*command[3:]))
        patch.setenv("COLUMNS", "200")
        patch.setattr(rich_utils, "MAX_WIDTH", 200)
        run_here(*words, "--help")
    return frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]*", printed.getvalue()))


def known_flags(command: str) -> frozenset[str]:
    """Return the flags of the named command, or of all commands of Tandem."""
    found = COMMAND.search(command)
    if found and found[2]:
        return help_of(found[2])
    roles = [found[1]] if found else ["", *TANDEM]
    return frozenset().union(*(help_of("tandem", *role.split()) for role in roles))


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_flags_and_settings_are_known(page: Path) -> None:
    for command in code(page):
        if command.startswith(NOT_OURS):
            continue
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", command))
        assert flags <= (known_flags(command) if flags else set()), command
        for role, setting in re.findall(r"TANDEM__([A-Z]+)__([A-Z_]+)", command):
            flag = f"--{setting.lower().replace('_', '-')}"
            assert flag in help_of("tandem", role.lower()), command
    for block in blocks(page):
        if block.kind == "yaml":
            found = yaml.safe_load(block.text)
            for role, settings in ({} if "resources" in found else found).items():
                flags = {f"--{setting.replace('_', '-')}" for setting in settings}
                assert flags <= help_of("tandem", role), block
