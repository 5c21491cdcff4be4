"""The example for Node.js runs with nothing of Tandem but the schema, and prints the same text as
Python's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.v1 import orchestrator_pb2 as api
from tests.documents import ROOT
from tests.served import Services, serve_all

pytestmark = pytest.mark.long("installs packages of Node.js")
EXAMPLE = ROOT / "examples" / "node"
SEED = (1 << 64) - 1
INSTALL = ("npm", "install", "--no-audit", "--no-fund", "--silent")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the example, its packages and the schema."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "generate.js"):
        shutil.copy(EXAMPLE / name, folder)
    schema = Path("protos", "tandem", "v1", "orchestrator.proto")
    (folder / schema).parent.mkdir(parents=True)
    shutil.copy(ROOT / schema, folder / schema)
    done = subprocess.run(INSTALL, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install {json.loads((folder / 'package.json').read_text())}")
    return folder


async def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Return the example's exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        "node",
        "generate.js",
        *arguments,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TANDEM_PROTOS": str(folder / "protos")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode(), errors.decode()


async def test_the_example_streams_the_text_of_its_seed(services: Services, folder: Path) -> None:
    async with serve_all(services) as tandem:
        code, printed, errors = await run(folder, tandem.address, "Once upon a time", str(SEED))
        assert code == 0, errors
        request = api.GenerateRequest(
            text="Once upon a time",
            sampling=api.Sampling(temperature=0.7, seed=SEED),
            stopping=api.Stopping(max_new_tokens=40),
        )
        answer = await tandem.stub.Generate(request)
        text, _, figures = printed.rpartition("\n")[0].rpartition("\n")
        assert text == answer.text
        assert figures.endswith(f"tokens per step; seed {SEED}")
        refused = await run(folder, tandem.address, "")
        assert refused[0] == 1 and refused[2] == "INVALID_ARGUMENT: request.text is empty\n"
