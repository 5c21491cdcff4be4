"""The `tandem` command as a person runs it beside one `tandem up`: processes of their own, errors
of one line, nothing left running.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import version
from urllib.request import urlopen

import psutil
import pytest

from examples import demo
from tandem import Client
from tandem.engine.forward.cpu.kernels import kernels
from tests.documents import ROOT, rows, section, spans
from tests.running_up import TANDEM, Served, running_up
from tests.waiting import LIMIT, wait_until

LEAVE_SCREEN = b"\x1b[?1049l"


def tandem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TANDEM, *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def up() -> Iterator[Served]:
    with running_up("--no-ray") as up:
        yield up


@pytest.fixture
def client(up: Served) -> Iterator[Client]:
    with Client(up.address) as client:
        yield client


def test_a_drafter_has_the_priority_of_the_verifier(up: Served) -> None:
    """With a lower priority, a drafter's proposals would come too late beside any busy process."""
    usual = psutil.Process().nice()
    for service in ("verifier_service", "drafter_service"):
        assert [each.nice() for each in up.processes(service)] == [usual]


def test_generate_streams_text_and_sums_up(up: Served) -> None:
    run = up.run("generate", "--temperature", "0", "--max-new-tokens", "9", "Once upon a time")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("Once upon a time")
    summary = r"\b9 tokens in \d+ steps, [\d.]+ per step; \d+ of \d+ draft tokens accepted"
    assert re.search(summary, run.stdout)


def test_json_prints_the_whole_response(up: Served) -> None:
    run = up.run("generate", "--seed", "4", "--max-new-tokens", "9", "--json", "A dog")
    answer = json.loads(run.stdout)
    assert answer["usage"]["completionTokens"] == len(answer["tokenIds"])
    assert answer["speculation"]["numSpecSteps"] > 0
    assert answer["seed"] == "4"


def test_status_and_top_show_the_replicas_and_the_last_minute(up: Served, client: Client) -> None:
    client.generate("Once upon a time", max_new_tokens=9)
    shown, screen = up.run("status"), up.run("top", "--once")
    assert (shown.returncode, screen.returncode) == (0, 0), shown.stderr + screen.stderr
    for words in (
        f"; tandem {version('tandem-serving')}\n",
        "0 running",
    ):
        assert words in shown.stdout
    assert re.search(r"^last minute: [\d.]+ tokens/s", shown.stdout, re.MULTILINE)
    assert re.search(r"; [1-9]\d* finished, 0 failed$", shown.stdout, re.MULTILINE)
    for word in ("verifier", "drafter", "acceptance rate", "goodput", "no requests now", "█"):
        assert word in screen.stdout


def test_up_and_status_show_what_the_services_hold(up: Served) -> None:
    """`tandem up` and `tandem status` print the same table of measured figures."""
    own, head = (
        kernels(),
        r"service +model +device +dtype +weights +context +fit +kernels +tokenizer +exactness",
    )
    (table,) = re.findall(rf"^{head}\n(?:\S.*\n)+", up.printed, re.MULTILINE)
    assert f"\n{table}\n" in up.run("status").stdout
    _, verifier, drafter = (line.split() for line in table.splitlines())
    kernel = rf"{own.name}, fused \d+ of \d+" if own else "onednn"
    exact = "exact" if own else "no: .+"
    exactness = {"verifier target cpu": f"- {exact}", "drafter draft cpu": "equal no: .+"}
    for row, name in zip((verifier, drafter), exactness, strict=True):
        assert row[:4] == [*name.split(), "float32"] and re.fullmatch(r"\d+\.\dMiB", row[4])
        assert row[5] == "512" and int(row[6]) >= 1
        assert re.fullmatch(f"{kernel} {exactness[name]}", " ".join(row[7:]))


def test_the_status_page_is_beside_the_metrics(up: Served, client: Client) -> None:
    """The status page for people and the one for programs show the served request and the
    replicas.
    """
    (metrics,) = re.findall(r"orchestrator +\S+  metrics (\S+)/metrics", up.printed)
    client.generate("Once upon a time", max_new_tokens=9)
    with urlopen(f"{metrics}/") as answer:
        page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert page.count("<svg") == 4 and page.count("float32") == 2
    with urlopen(f"{metrics}/status.json") as answer:
        shown = json.loads(answer.read())
    (model,) = shown["models"]
    assert shown["problems"] == [] and model["history"]
    assert [each["serving"] for each in model["verifiers"] + model["drafters"]] == [True, True]
    assert model["lastMinute"]["requestsFinished"] >= 1


def test_the_page_on_metrics_has_those_that_the_services_export(up: Served) -> None:
    exported = set()
    for url in re.findall(r"metrics (\S+/metrics)", up.printed):
        with urlopen(url) as page:
            exported |= set(re.findall(r"^# TYPE tandem_(\w+)", page.read().decode(), re.MULTILINE))
    documented = set()
    for cells in rows(section(ROOT / "docs" / "metrics.md", "Metrics of each service")):
        for cell in cells[:2]:
            documented |= {name.partition("{")[0] for name in spans(cell)}
    assert documented == {name for name in exported if not name.endswith("_created")}


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_top_well(up: Served) -> None:
    """The command runs in a terminal and restores the screen at its end."""
    ours, its = pty.openpty()
    command = [*TANDEM, "top", "--every", "0.2", "--address", up.address]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        shown = b""
        while part := read(ours):
            seen, shown = b"acceptance rate" in shown, shown + part
            if not seen and b"acceptance rate" in shown:
                process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
    os.close(ours)
    assert b"acceptance rate" in shown and b"Traceback" not in shown
    assert shown.rindex(LEAVE_SCREEN) > shown.rindex(b"acceptance rate")


def read(terminal: int) -> bytes:
    """Return what a program shows next, or nothing when it has ended."""
    with suppress(OSError):
        if select.select([terminal], [], [], LIMIT)[0]:
            return os.read(terminal, 1 << 16)
    return b""


def test_status_and_top_fail_while_the_verifier_is_frozen_and_not_for_a_drafter(up: Served) -> None:
    def says(code: int, *command: str) -> bool:
        run = up.run(*command)
        return run.returncode == code and "no answer in 2 s" in run.stdout

    frozen = [*up.processes("drafter_service"), *up.processes("verifier_service")]
    try:
        for service, code in zip(frozen, (0, 1), strict=True):
            service.suspend()
            wait_until(lambda code=code: says(code, "status"))
        wait_until(lambda: says(1, "top", "--once"))
    finally:
        for service in frozen:
            service.resume()
    wait_until(lambda: "no answer" not in up.run("status").stdout)


def all_serve(client: Client) -> bool:
    (model,) = client.status().models
    states = [replica.serving for replica in (*model.verifiers, *model.drafters)]
    return states == [True, True]


@pytest.mark.long("a service that was killed has to load its model again")
@pytest.mark.parametrize("role", ["drafter_service", "verifier_service"])
def test_a_killed_service_comes_back_and_costs_no_token(
    up: Served, client: Client, role: str
) -> None:
    """Two streams run during the loss."""
    wait_until(lambda: all_serve(client))
    seeds, (victim,) = (4, 5), up.processes(role)
    like = {"max_new_tokens": 80, "ignore_eos": True}
    calm = [client.generate("A dog", seed=seed, **like).text for seed in seeds]
    with ExitStack() as scope:
        streams = [scope.enter_context(client.stream("A dog", seed=s, **like)) for s in seeds]
        texts = [next(iter(stream)).text for stream in streams]
        victim.kill()
        texts = [
            text + "".join(chunk.text for chunk in stream)
            for text, stream in zip(texts, streams, strict=True)
        ]
    assert texts == calm
    victim.wait()
    wait_until(lambda: up.processes(role) and all_serve(client))
    assert up.process.poll() is None


def test_a_bad_request_is_one_line_that_names_what_is_wrong(up: Served) -> None:
    run = up.run("generate", "--num-speculative-tokens", "99", "Hello")
    refused_in_one_line(run, ["num_speculative_tokens", "99", "32"])


@pytest.mark.parametrize("words", [["generate", "Hello"], ["status"]])
def test_without_a_server_the_client_says_so(words: list[str]) -> None:
    refused_in_one_line(tandem(*words, "--address", "[::1]:1"), ["[::1]:1", "tandem up"])


def test_up_ends_at_once_while_its_models_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_DEMO", mark := f"loading-{os.getpid()}")
    command = [*TANDEM, "up", "--port", "0", "--no-ray"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "loading     verifier" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 128 + signal.SIGINT
        assert process.stderr.read() == ""
    wait_until(lambda: not demo.left_running(mark), "no process of `tandem up` is left")


def test_a_port_in_use_is_one_line_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_DEMO", mark := f"port-in-use-{os.getpid()}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused_in_one_line(tandem("up", "--port", port), [port])
    wait_until(lambda: not demo.left_running(mark), "no process of `tandem up` is left")


def refused_in_one_line(run: subprocess.CompletedProcess[str], words: list[str]) -> None:
    """Check for exit code 1 and one line on standard error with all these words."""
    assert run.returncode == 1, run.stdout + run.stderr
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1, run.stderr
    assert [word for word in words if word not in lines[0]] == []
