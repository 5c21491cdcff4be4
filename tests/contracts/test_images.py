"""The Dockerfile: hadolint finds nothing, and every program that its images run exists."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from asyncio.subprocess import DEVNULL
from importlib.util import find_spec
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.protos.service.config import ROLES
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.service.probes import add_probes
from tests.documents import ROOT

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
BIN = Path(sys.executable).parent
Instructions = list[tuple[str, str]]


def stages() -> dict[str, Instructions]:
    """Return the instructions of each stage, including those of the stages that it builds on."""
    found: dict[str, Instructions] = {}
    text = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    name = ""
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, ()))
        elif name and line.strip() and word != "#":
            found[name].append((word, " ".join(rest.split())))
    return found


def last(role: str, word: str) -> str:
    """Return the last instruction of a kind in a role's image, which is the one that counts."""
    return [rest for name, rest in stages()[role] if name == word][-1]


def test_hadolint_finds_nothing() -> None:
    program = shutil.which("hadolint", path=f"{BIN}:/usr/local/bin:/usr/bin")
    if not program:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("role", ROLES)
def test_an_image_runs_its_service_as_nobody(role: str) -> None:
    *_, module = json.loads(last(role, "ENTRYPOINT"))
    assert find_spec(f"{module}.__main__") and module.startswith(f"tandem.{role}")
    assert last(role, "USER") == "65532:65532"


@pytest.mark.parametrize("role", ROLES)
async def test_a_container_is_healthy_when_its_readiness_page_says_so(role: str) -> None:
    """The test runs the image's own command, with another port."""
    command = json.loads(last(role, "HEALTHCHECK").partition("CMD ")[2])
    assert "9090" in last(role, "EXPOSE").split()
    problems: list[str] = []
    pages = Pages(CollectorRegistry())

    async def healthy(port: str) -> bool:
        words = [word.replace("/127.0.0.1/9090", f"/127.0.0.1/{port}") for word in command]
        assert words != command
        process = await asyncio.create_subprocess_exec(*words, stderr=DEVNULL)
        return not await process.wait()

    with pages_served("127.0.0.1", 0, pages) as address:
        port = address.rpartition(":")[2]
        assert not await healthy(port), "it loads"
        add_probes(pages, lambda: problems)
        assert await healthy(port)
        problems.append("no verifier serves")
        assert not await healthy(port)
    assert not await healthy(port), "nothing listens"


def test_pytorch_is_that_of_the_tests_and_only_where_there_is_a_model() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (tested,) = re.findall(r"^TORCH \?= (\S+)$", makefile, re.MULTILINE)
    assert f"ARG TORCH={tested}\n" in DOCKERFILE.read_text(encoding="utf-8")
    copied = {role: last(role, "COPY").partition("=")[2].split()[0] for role in ROLES}
    assert copied == {"drafter": "models", "verifier": "models", "orchestrator": "fronts"}
    assert not [rest for _, rest in stages()["fronts"] if "TORCH" in rest]


def test_everything_that_the_wheel_is_made_of_is_in_the_build_context() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    links = {
        path.readlink().parts[2] for path in (ROOT / "src/tandem").iterdir() if path.is_symlink()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*links, "src", "setup.py", "pyproject.toml", project["readme"]} <= kept
    assert not [name for name in kept if not (ROOT / name).exists()]
