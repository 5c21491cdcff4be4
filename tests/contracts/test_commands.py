"""Command lines fail early: before anything is loaded, quickly, and with one line if something is
missing.
"""

from __future__ import annotations

import json
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
from tandem.orchestrator.cli.flags import HELP
from tandem.protos.wire.options import options
from tests.waiting import LIMIT

SLOW = ("torch", "transformers", "ray", "grpc", "llama_cpp", "huggingface_hub")
SERVICES = ("tandem.verifier_service", "tandem.drafter_service", "tandem.orchestrator")
RUN = """
import contextlib, io, json, runpy, sys
lines, missing, slow = json.loads(sys.argv[1])
for name in missing:
    sys.modules[name] = None
found = []
for module, *arguments in lines:
    sys.argv, code, printed = ["", *arguments], 0, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
    if isinstance(code, str):  # a line to print, which the interpreter does
        print(code, file=printed)
        code = 1
    found.append([code, printed.getvalue()])
print(json.dumps([found, [name for name in slow if sys.modules.get(name)]]))
"""
VERIFIER = ("tandem.verifier_service", f"--model={models.TARGET}")
DRAFTER = ("tandem.drafter_service", f"--model={models.DRAFT}")
FRONT = (
    *("tandem.orchestrator", "--verifier=v:1", "--drafter=d:1", "--port=0"),
    f"--tokenizer={models.TARGET}",
)


def run(
    *lines: tuple[str, ...], missing: tuple[str, ...] = (), **environment: str
) -> tuple[list[tuple[int, str]], list[str]]:
    """Run command lines, each a module and its arguments, one after the other in a process without
    some packages. Return the exit code and standard error of each, and the slow packages that it
    imported.
    """
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([lines, missing, SLOW])],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found, imported = json.loads(done.stdout)
    return [(code, printed) for code, printed in found], imported


def refused(found: list[tuple[int, str]]) -> list[str]:
    """Return the one line on standard error of each command that refused to start."""
    for code, printed in found:
        assert (code, printed.count("\n")) == (1, 1), printed
    return [printed for _, printed in found]


def test_nothing_slow_is_imported_before_arguments_are_parsed(tmp_path: Path) -> None:
    commands = [("tandem", command) for command in ("up", "generate", "status")]
    modules = [("tandem",), *((service,) for service in SERVICES)]
    good = [(*line, "--help") for line in commands + modules]
    wrong = [(*line, "--bogus") for line in modules]
    nowhere = (VERIFIER[0], f"--model={tmp_path / 'nothing'}")
    found, imported = run(*good, *wrong, nowhere)
    assert [code for code, _ in found] == [0] * len(good) + [2, 1, 1, 1] + [1]
    assert "nothing is not a model directory: it has no config.json" in found[-1][1]
    assert imported == []


def test_the_version_is_that_of_the_distribution() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"tandem {version('tandem-serving')}\n")


def test_a_missing_extra_is_one_line_that_says_what_to_install() -> None:
    found, _ = run(VERIFIER, DRAFTER, FRONT, missing=("torch", "transformers", "ray"))
    assert refused(found) == [
        f"error: {package} is not installed: pip install 'tandem-serving[{extra}]'\n"
        for package, extra in (
            ("torch", "verifier"),
            ("torch", "drafter"),
            ("ray", "orchestrator"),
        )
    ]


def test_a_misspelt_variable_is_one_line() -> None:
    up = ("tandem", "up", "--port=0", "--no-ray")
    found, _ = run(VERIFIER, up, TANDEM__VERIFIER__DTPYE="bfloat16")
    problem = "TANDEM__VERIFIER__DTPYE: no such setting; did you mean TANDEM__VERIFIER__DTYPE?"
    assert refused(found) == [f"error: {problem}\n"] * 2


def test_a_node_that_is_not_there_is_one_line_before_anything_slow_is_imported() -> None:
    found, imported = run((*VERIFIER, "--numa=999"), (*DRAFTER, "--numa=999"))
    for line in refused(found):
        assert line.startswith("error: numa 999 cannot be used: the nodes that this process may")
    assert imported == []


def test_a_wrong_ray_address_is_one_line() -> None:
    known = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    found, _ = run((*FRONT, "--ray-address=127.0.0.1:1"), **known)
    (line,) = refused(found)
    assert "cannot join Ray at 127.0.0.1:1: it does not answer" in line


def test_a_signal_in_the_moment_of_serving_is_a_good_end() -> None:
    program = f"""
import asyncio, os, signal, sys
from contextlib import asynccontextmanager
from pathlib import Path
from tandem.engine.config import ModelServiceConfig
from tandem.protos.service import command, process

@asynccontextmanager
async def serve(config, registry, drain, pages):
    yield "here"
    print("ended in order")

process.announce = lambda *_, **__: os.kill(os.getpid(), int(sys.argv[1]))
config = ModelServiceConfig(model=Path({str(models.DRAFT)!r}))
asyncio.run(command.run("drafter", config, serve))
"""
    for number in (signal.SIGINT, signal.SIGTERM):
        words = [sys.executable, "-c", program, str(int(number))]
        done = subprocess.run(words, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "ended in order\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_service_that_loads_at_once(number: signal.Signals) -> None:
    """The signal comes while PyTorch is imported, or while a thread reads the model."""
    command = [sys.executable, "-m", *VERIFIER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b'"loading"' in process.stdout.readline()
        if number is signal.SIGTERM:
            assert b'"testing"' in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(LIMIT) == -number
        assert process.stderr.read() == b""


def test_every_option_that_is_served_has_a_flag() -> None:
    assert set(HELP) == options().keys() - {"drafter"}, "which is refused"
