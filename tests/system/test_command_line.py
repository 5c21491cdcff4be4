"""The `tandem` command as a person runs it: processes of their own, one-line errors, nothing left
running.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

import tandem.models
from examples import demo
from tandem import models
from tandem.engine.forward.cpu.kernels import kernels
from tests.running_up import TANDEM, Up, running_up


def tandem(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TANDEM, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    with running_up() as up:
        yield up


def descendants(up: Up) -> list[tuple[psutil.Process, str]]:
    """Everything that `tandem up` started and that lives, with the head of its command line."""
    found = []
    for child in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            found.append((child, " ".join(child.cmdline()[:4])))
    return found


def serving(up: Up, role: str, but: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """The processes of a role but for some; Ray may take long to start one."""
    for _ in range(900):
        if found := [each for each, head in descendants(up) if role in head and each not in but]:
            return found
        time.sleep(0.2)
    raise AssertionError(f"no {role}")


def test_a_drafter_lets_the_verifier_go_first(up: Up) -> None:
    niceness = {
        role: child.nice()
        for child, command in descendants(up)
        for role in ("verifier_service", "drafter_service")
        if role in command
    }
    usual = psutil.Process().nice()
    assert niceness == {"verifier_service": usual, "drafter_service": max(usual, 10)}


def test_generate_streams_text_and_sums_up(up: Up) -> None:
    run = tandem(
        "generate",
        "--address",
        up.address,
        "--temperature",
        "0",
        "--max-new-tokens",
        "30",
        "Once upon a time",
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Once upon a time")
    assert re.search(
        r"\d+ tokens in \d+ steps, [\d.]+ per step; \d+ of \d+ draft tokens accepted", run.stdout
    )


def test_json_prints_the_whole_response(up: Up) -> None:
    run = tandem(
        "generate",
        "--address",
        up.address,
        "--seed",
        "4",
        "--max-new-tokens",
        "20",
        "--json",
        "A dog",
    )
    answer = json.loads(run.stdout)
    assert answer["usage"]["completionTokens"] == len(answer["tokenIds"])
    assert answer["speculation"]["numSpecSteps"] > 0
    assert answer["seed"] == "4"


def test_status_shows_both_replicas(up: Up) -> None:
    run = tandem("status", "--address", up.address)
    assert [word in run.stdout for word in ("verifier", "drafter", "float32", "0 running")] == [
        True
    ] * 4
    own = kernels()
    assert f": exact, {own.name if own else 'onednn'} kernels\n" in run.stdout
    assert f"; tandem {version('tandem-serving')}\n" in run.stdout


@pytest.mark.parametrize("role", ["drafter_service", "verifier_service", "ray::RoundWorker"])
def test_a_killed_service_comes_back_and_the_text_is_the_same(up: Up, role: str) -> None:
    question = (
        "generate",
        "--address",
        up.address,
        "--seed",
        "4",
        "--max-new-tokens",
        "40",
        "--json",
        "A dog and a cat",
    )
    before = json.loads(tandem(*question).stdout)["text"]
    victims = serving(up, role)
    for victim in victims:
        victim.kill()
    for _ in range(2):
        run = tandem(*question)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout)["text"] == before
    for _ in range(30):
        model = json.loads(tandem("status", "--address", up.address, "--json").stdout)["models"][0]
        states = [replica["serving"] for replica in (*model["verifiers"], *model["drafters"])]
        if states == [True, True]:
            break
    assert states == [True, True]
    assert serving(up, role, but=victims)
    assert up.process.poll() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-1"], ["sampling.temperature", "-1", "0"]),
        (["--top-p", "1.5"], ["sampling.top_p", "1.5", "1"]),
        (["--max-new-tokens", "0"], ["stopping.max_new_tokens", "0", "1"]),
        (["--num-speculative-tokens", "99"], ["num_speculative_tokens", "99", "32"]),
        (["--branches", "0"], ["branches", "0", "1..64"]),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(
    up: Up, arguments: list[str], words: list[str]
) -> None:
    refused_in_one_line(tandem("generate", "--address", up.address, *arguments, "Hello"), words)


@pytest.mark.parametrize(("prompt", "words"), [("word " * 600, ["text", "512"]), ("", ["text"])])
def test_a_bad_prompt_is_one_line(up: Up, prompt: str, words: list[str]) -> None:
    refused_in_one_line(tandem("generate", "--address", up.address, prompt), words)


def test_without_a_server_the_client_says_so() -> None:
    refused_in_one_line(
        tandem("generate", "--address", "127.0.0.1:1", "Hello"), ["127.0.0.1:1", "tandem up"]
    )


def test_an_unknown_model_directory_is_one_line(tmp_path: Path) -> None:
    refused_in_one_line(
        tandem("up", "--port", "0", "--target", tmp_path), [str(tmp_path), "config.json"]
    )
    refused_in_one_line(tandem("verifier", "--model", tmp_path), [str(tmp_path), "config.json"])


def test_a_model_that_a_child_refuses_is_one_line_of_up(tmp_path: Path) -> None:
    for file in models.TARGET.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    run = tandem("up", "--port", "0", "--no-ray", "--target", tmp_path)
    refused_in_one_line(run, [str(tmp_path), "cannot be loaded"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_ends_at_once_while_its_models_load(number: signal.Signals) -> None:
    mark = secrets.token_hex(8)
    environment = os.environ | {"TANDEM_DEMO": mark}
    command = [*TANDEM, "up", "--port", "0", "--no-ray"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "loading     verifier" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(10) == 128 + number
        assert process.stderr.read() == ""
    assert demo.left_running(mark) == []


def test_without_a_server_status_is_a_failure() -> None:
    refused_in_one_line(tandem("status", "--address", "[::1]:1"), ["[::1]:1", "tandem up"])


def test_a_port_in_use_is_one_line_and_nothing_is_left() -> None:
    mark = secrets.token_hex(8)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [*TANDEM, "up", "--port", port]
        run = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"TANDEM_DEMO": mark}
        )
        refused_in_one_line(run, [port])
        refused_in_one_line(tandem("verifier", "--model", models.TARGET, "--port", port), [port])
    time.sleep(0.5)
    assert demo.left_running(mark) == []


def refused_in_one_line(run: subprocess.CompletedProcess[str], words: list[str]) -> None:
    """Exit code 1, one line on standard error, every word in it."""
    assert run.returncode == 1, run.stdout + run.stderr
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1, run.stderr
    assert [word for word in words if word not in lines[0]] == []
