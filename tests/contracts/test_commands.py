"""Command lines before anything is loaded: quick, and a line where something is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem import models
from tandem.orchestrator.cli.app import app

SLOW = ("torch", "transformers", "ray", "grpc", "llama_cpp", "huggingface_hub")
SERVICES = ("tandem.verifier_service", "tandem.drafter_service", "tandem.orchestrator")
RUN = """
import runpy, sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = [""] + {arguments!r}
try:
    runpy.run_module({module!r}, run_name="__main__")
finally:
    sys.stdout.flush()
    print(*(set(sys.modules) & set({slow!r})))
"""
FRONT = ["--verifier=v:1", "--drafter=d:1", f"--tokenizer={models.TARGET}", "--port=0"]


def run(
    module: str, *arguments: str, missing: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A module with a command line, some packages of which are not installed; its last line names
    the slow packages that it imported.
    """
    program = RUN.format(module=module, arguments=list(arguments), missing=missing, slow=SLOW)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on standard error of a process that refused to start."""
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    return done.stderr


@pytest.mark.parametrize("module", ["tandem", *SERVICES])
@pytest.mark.parametrize("arguments", [["--help"], ["--bogus"]])
def test_nothing_slow_is_imported_before_arguments_are_parsed(
    module: str, arguments: list[str]
) -> None:
    done = run(module, *arguments)
    assert done.returncode == (0 if arguments == ["--help"] else 2 if module == "tandem" else 1)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("command", ["up", "generate", "status"])
def test_every_command_explains_itself(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0 and "Usage" in shown.output


def test_the_version_is_that_of_the_distribution() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"tandem {version('tandem-serving')}\n")


@pytest.mark.parametrize(
    ("module", "package", "arguments"),
    [
        ("tandem.verifier_service", "torch", [f"--model={models.TARGET}"]),
        ("tandem.drafter_service", "transformers", [f"--model={models.DRAFT}"]),
        ("tandem.orchestrator", "ray", FRONT),
    ],
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    module: str, package: str, arguments: list[str]
) -> None:
    role = module.rpartition(".")[2].removesuffix("_service")
    line = refused(run(module, *arguments, missing=(package,)))
    assert line == f"error: {package} is not installed: pip install 'tandem-serving[{role}]'\n"


def test_a_misspelt_variable_is_one_line() -> None:
    wrong = {"TANDEM__VERIFIER__DTPYE": "bfloat16"}
    right = "TANDEM__VERIFIER__DTYPE"
    line = refused(run("tandem.verifier_service", f"--model={models.TARGET}", **wrong))
    assert line == f"error: TANDEM__VERIFIER__DTPYE: no such setting; did you mean {right}?\n"
    assert refused(run("tandem", "up", "--port=0", "--no-ray", **wrong)) == line


def test_a_model_directory_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    done = run("tandem.verifier_service", f"--model={tmp_path / 'nothing'}")
    assert "nothing is not a model directory: it has no config.json" in refused(done)
    assert done.stdout == "\n", "it was found before anything slow was imported"


@pytest.mark.parametrize(
    ("address", "problem"), [("127.0.0.1:1", "refused"), ("nonsense", "Invalid address format")]
)
def test_a_wrong_ray_address_is_one_line(address: str, problem: str) -> None:
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    line = refused(run("tandem.orchestrator", *FRONT, f"--ray-address={address}", **known))
    assert f"cannot join the Ray cluster at {address}: " in line and problem in line


def test_a_signal_in_the_moment_of_serving_is_a_good_end() -> None:
    program = f"""
import asyncio, os, signal, sys
from contextlib import asynccontextmanager
from pathlib import Path
from tandem.engine.config import ModelServiceConfig
from tandem.protos.service import command, process

@asynccontextmanager
async def serve(config, registry, drain):
    yield "here"
    print("ended in order")

process.announce = lambda *_, **__: os.kill(os.getpid(), int(sys.argv[1]))
config = ModelServiceConfig(model=Path({str(models.DRAFT)!r}))
asyncio.run(command.run("drafter", config, serve))
"""
    for number in (signal.SIGINT, signal.SIGTERM):
        words = [sys.executable, "-c", program, str(int(number))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_service_that_loads_at_once(number: signal.Signals) -> None:
    """While PyTorch is imported, and while a thread reads the model."""
    command = [sys.executable, "-m", "tandem.verifier_service", f"--model={models.TARGET}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b'"loading"' in process.stdout.readline()
        if number is signal.SIGTERM:
            assert b'"testing"' in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(10) == -number
        assert process.stderr.read() == b""
