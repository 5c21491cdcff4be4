"""Client programs that other people wrote do their common tasks, each in an environment of its own.

SmolLM2, behind `tandem up`, gives chats and structured answers; a scripted model calls the tools.
The programs in `clients/` assert what a client gets.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from openai import OpenAI

from tandem import models
from tandem.orchestrator.requests.chat import Formats
from tests.documents import ROOT
from tests.running_up import running_up
from tests.services.saying import TEMPLATE, saying, says

HERE, CACHE = Path(__file__).parent / "clients", ROOT / ".venv" / "clients"
ASKED = "TANDEM_CLIENTS"  # `make clients` sets this environment variable
SECONDS = 1200.0  # longer than this, a client counts as hanging


@dataclass(frozen=True)
class Client:
    """A program, and the packages that it needs."""

    program: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return the client's environment, which is made once."""
        return CACHE / Path(self.program).stem

    def command(self) -> list[str]:
        """Make the environment if it does not exist, and return the command that starts the
        program. Skips the test where the packages cannot be installed.
        """
        script, ready = self.program.endswith(".mjs"), self.folder / "ready"
        known = "\n".join(self.packages)
        if not ready.exists() or ready.read_text() != known:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._install(script)
            ready.write_text(known)
        if not script:
            return [str(self.folder / "bin" / "python"), "-P", str(HERE / self.program)]
        # Node looks for packages beside the program
        return ["node", shutil.copy(HERE / self.program, self.folder)]

    def _install(self, script: bool) -> None:
        if script and not (shutil.which("node") and shutil.which("npm")):
            pytest.skip("there is no node, or no npm")
        environment = [sys.executable, "-m", "venv", str(self.folder)]
        pip = [str(self.folder / "bin" / "python"), "-m", "pip", "install", *self.packages]
        npm = ["npm", "install", "--prefix", str(self.folder), *self.packages]
        for command in [npm] if script else [environment, pip]:
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                last = (made.stderr.strip().splitlines() or ["?"])[-1]
                pytest.skip(f"{', '.join(self.packages)} cannot be had: {last}")


CLIENTS = (  # tested versions; another version may make other requests
    Client("openai_sdk.py", ("openai==3.57.0",)),
    Client("litellm_sdk.py", ("litellm==1.110.2", "openai==3.57.0")),
    Client("langchain_sdk.py", ("langchain-openai==1.7.4", "openai==3.57.0")),
    Client("instructor_sdk.py", ("instructor==1.17.0", "openai==3.3.0")),
    Client("pydantic_ai_sdk.py", ("pydantic-ai-slim[openai]==2.68.0", "openai==3.57.0")),
    Client("agents_sdk.py", ("openai-agents==0.24.0", "openai==3.57.0")),
    Client("llm_cli.py", ("llm==0.36", "openai==3.57.0")),
    Client("guidellm_cli.py", ("guidellm==0.8.1",)),
    Client("ai_sdk.mjs", ("ai@6.0.326", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7")),
)

pytestmark = [
    pytest.mark.long("installs other people's programs, and loads a real model"),
    pytest.mark.skipif(ASKED not in os.environ, reason="`make clients` installs 7 GB of clients"),
    pytest.mark.skipif(not (models.SMOLLM2 / "config.json").exists(), reason="make real-model"),
    pytest.mark.timeout(2400),  # includes the time of pip
]


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """Return the URL of the server with SmolLM2."""
    flags = ("--no-ray", "--target", str(models.SMOLLM2), "--draft", "none", "--http-port", "0")
    with running_up(*flags) as up:
        (line,) = [line for line in up.printed.splitlines() if " http " in line]
        yield line.split()[-1]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
async def test_a_foreign_client_does_its_common_jobs(client: Client, small: str) -> None:
    command = await asyncio.to_thread(client.command)
    (model,) = OpenAI(base_url=small, api_key="none").models.list().data
    plain = {"NO_PROXY": urlsplit(small).hostname or "", "HF_HUB_OFFLINE": "1"}
    async with saying(says("hermes"), TEMPLATE, Formats("hermes")) as tools:
        process = await asyncio.create_subprocess_exec(
            *command,
            *(small, model.id, f"{tools.url}/v1", str(models.SMOLLM2)),
            env=os.environ | plain,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        printed, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert process.returncode == 0, printed.decode()[-4000:]
