"""What `tandem status` and `tandem top` print, and what `tandem up` prints about models."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from tandem.orchestrator.cli import client, status_view, terminal, top
from tandem.orchestrator.cli.flags import FrontEnd
from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.servicer import encode_replica
from tandem.protos.service.about import announce_model
from tandem.protos.transport import rpc
from tandem.protos.types import ModelDescription
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.documents import ROOT, blocks

LONG = "verifier-of-the-large-model.in-the-second-rack.of-the-cluster.example.com:7001"
LARGE = ModelDescription(
    *("Some-Instruct-Model-Of-70B-Q4_K_M.gguf", "", 100_000, 131_072, (), "cuda:0, experimental"),
    "bfloat16, dequantised from mxfp4",
    exactness="exact unavailable: 12 of 345 rows differ, by up to 0.25",
    kernels="avx512bf16, onednn",
    weights_bytes=75 << 30,
    cache_positions=3 << 17,
    full_sessions=2,
)
SMALL = ModelDescription(
    *("draft", "", 100, 512, (), "cpu", "float32", 3, "exact", 0.25, "avx2"),
    weights_bytes=5_600_000,
    cache_positions=1 << 14,
    full_sessions=21,
    tokenizer="nearly equal",
    masked_tokens=20,
)
NEARLY = "nearlyequal,20masked"
CELLS = {  # cells of both services in the table
    "verifier": (
        *("Some-Instruct-Model-Of-70B-Q4_K_M.gguf", "cuda:0,experimental"),
        *("bfloat16,dequantisedfrommxfp4", "75.0GiB", "131072", "2", "avx512bf16,onednn"),
        *("-", "no:12of345rowsdiffer,byupto0.25"),
    ),
    "drafter": ("draft", "cpu", "float32", "5.3MiB", "512", "21", "avx2", NEARLY, "exact"),
}


class Orchestrator(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Reports a verifier that serves or does not, no verifier, or another problem."""

    def __init__(self, serving: bool, *problems: str, models: int = 1) -> None:
        self.serving, self.problems, self.models = serving, problems, models

    async def GetStatus(
        self, request: api.GetStatusRequest, context: object
    ) -> api.GetStatusResponse:
        """One model."""
        verifier = api.ReplicaStatus(
            address=LONG, serving=self.serving, exactness="exact", model="target", sessions=3
        )
        verifier.kv_cache_usage, verifier.round_trip_seconds = 0.25, 0.0015
        drafter = api.ReplicaStatus(address="[fe80::1]:7002", problem="no answer in 2 s")
        minute = api.RecentFigures(
            seconds=60,
            tokens_per_second=213.4,
            acceptance_rate=0.385,
            mean_acceptance_length=1.6,
            goodput_with_drafts=100,
            goodput_without_drafts=50,
            steps_with_drafts=0.2,
            goodput_gain=1.2,
            requests_finished=12,
            requests_failed=1,
        )
        model = api.ModelStatus(
            name="target", verifiers=[verifier], drafters=[drafter], last_minute=minute
        )
        model.clients.add(name="c0ffee00", running=2, waiting=1)
        model.history.extend([minute] * request.history)
        return api.GetStatusResponse(
            version="1.2.3", models=[model] * self.models, problems=self.problems
        )


@pytest.mark.parametrize(
    ("orchestrator", "code"),
    [
        (Orchestrator(True), 0),  # requests are served without a drafter
        (Orchestrator(False), 1),
        (Orchestrator(True, "no verifier serves"), 1),
        (Orchestrator(True, models=0), 1),
    ],
    ids=["serving", "no-verifier", "problem", "no-model"],
)
async def test_the_exit_code_is_whether_requests_are_served(
    orchestrator: Orchestrator, code: int
) -> None:
    async with rpc.serving("127.0.0.1", 0, orchestrator) as address:
        assert await client.show_status(FrontEnd(address), as_json=True) == code
        assert await client.show_status(FrontEnd(address), as_json=False) == code
        assert await client.show_top(FrontEnd(address), every=1.0, once=True) == code


async def test_status_is_complete_and_addresses_are_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    orchestrator = Orchestrator(True, "it is stopping")
    status_view.show_status(await orchestrator.GetStatus(api.GetStatusRequest(), None))
    lines = (printed := capsys.readouterr().out).splitlines()
    assert LONG in lines[1] and lines[1].split()[-5:] == ["3", "25", "%", "1.5", "ms"]
    assert lines[2].split() == ["drafter", "[fe80::1]:7002", *["no", "answer", "in", "2", "s"]]
    minute = (
        "last minute: 213.4 tokens/s, acceptance rate 38 %, mean acceptance length 1.60; goodput "
        "100 tokens/s with drafts, 50 without, 20 % of steps with drafts "
        "(speed-up over all steps: 1.20); 12 finished, 1 failed"
    )
    assert minute in lines
    assert "not serving: it is stopping" in lines
    assert printed.endswith("target: 0 running, 0 waiting; tandem 1.2.3\n")


def test_what_was_not_counted_is_no_zero() -> None:
    line = status_view.recent(api.RecentFigures(seconds=60))
    assert "acceptance rate -, mean acceptance length -; goodput - tokens/s with drafts" in line
    assert "0 %" in status_view.recent(api.RecentFigures(acceptance_rate=0.0))


@pytest.mark.parametrize("width", [80, 100, 200])
async def test_top_shows_everything_at_any_width(width: int) -> None:
    response = await Orchestrator(True).GetStatus(api.GetStatusRequest(history=True), None)
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(top.frame(response, "here:1"))
    flat = captured.get().replace("\n", "").replace(" ", "")
    for word in ("38%", "1.60", "[fe80::1]:7002", "c0ffee00", "eps:1.20", "serving", "noanswer"):
        assert word in flat, captured.get()


def test_bars_are_as_high_as_values_and_never_more_than_fit() -> None:
    assert top.spark([0, 1, 4, 8]) == " ▁▄█"
    assert top.spark([0.0] * 5) == " " * 5
    assert top.spark([0.001, 100]) == "▁█", "little is not nothing"
    assert len(top.spark([1.0] * 180)) == 45
    assert top.spark([]) == ""


def test_progress_shows_addresses_of_ipv6_whole(capsys: pytest.CaptureFixture[str]) -> None:
    progress = terminal.StartProgress(terminal.console())
    fact = {"role": "verifier", "address": "[fe80::1]:7001", "metrics": "http://[fe80::1]:9001"}
    progress.report("serving", fact)
    progress.report("testing", {"role": "verifier", "model": "models/[fe]"})
    progress.report("loading", {"role": "drafter", "seconds": "10"})
    progress.report("serving", fact | {"role": "orchestrator", "metrics": "https://[fe80::1]:9003"})
    progress.ready("[fe80::1]:7002")
    said = capsys.readouterr().out
    for word in (
        "[fe80::1]:7001",
        "http://[fe80::1]:9001/metrics",
        "models/[fe]",
        "\nWatch:    tandem top --address [fe80::1]:7002\n",
    ):
        assert word in said
    assert "loading     drafter      for 10 s\n" in said
    assert "Status page: https://[fe80::1]:9003/\n" in said


def cells(lines: list[str]) -> dict[str, tuple[str, ...]]:
    """Return the cells of the table of models, each joined from its lines, without spaces."""
    (head,) = (number for number, line in enumerate(lines) if line.split() == [*status_view.HELD])
    starts = [lines[head].index(name) for name in status_view.HELD]
    found: dict[str, list[str]] = {}
    for line in lines[head + 1 :]:
        if not line:
            break
        assert len(line) <= status_view.WIDTH
        name, *parts = (
            line[start:end].replace(" ", "")
            for start, end in zip(starts, [*starts[1:], None], strict=True)
        )
        row = found.setdefault(name or next(reversed(found)), [""] * len(parts))
        row[:] = map(str.__add__, row, parts)
    return {name: tuple(row) for name, row in found.items()}


def announced(model: ModelDescription, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return what a service prints about its model on standard output."""
    announce_model(model)
    fact: dict[str, str] = json.loads(capsys.readouterr().out)
    assert fact.pop("event") == "loaded"
    return fact


def test_up_prints_one_table_of_what_its_services_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows the last description of each service; a later restart prints none."""
    facts = {"verifier": announced(LARGE, capsys), "drafter": announced(SMALL, capsys)}
    progress = terminal.StartProgress(terminal.console())
    for role in ("drafter", "verifier"):
        progress.report("loaded", facts["drafter"] | {"role": role})
    progress.report("loaded", facts["verifier"] | {"role": "verifier"})
    assert capsys.readouterr().out == ""
    progress.report("loaded", {"role": "verifier", "seconds": "5"})
    assert capsys.readouterr().out == "loaded      verifier     for 5 s\n"
    progress.ready("here:1")
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines) == CELLS and [*cells(lines)] == ["verifier", "drafter"]
    progress.report("loaded", facts["drafter"] | {"role": "drafter"})
    assert capsys.readouterr().out == ""


def test_what_a_service_announces_is_what_a_status_says_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fact, model = announced(LARGE, capsys), encode_replica(ReplicaStatus("here:1", LARGE, 0.0))
    assert fact == {name: getattr(model, name) for name in fact}


def test_status_shows_the_same_facts_as_up(capsys: pytest.CaptureFixture[str]) -> None:
    verifier, drafter = (
        encode_replica(ReplicaStatus(f"{LONG}{number}", model, 0.0))
        for number, model in enumerate((LARGE, SMALL))
    )
    model = api.ModelStatus(verifiers=[verifier], drafters=[drafter])
    status_view.show_status(api.GetStatusResponse(models=[model]))
    assert cells(capsys.readouterr().out.splitlines()) == CELLS
    model = api.ModelStatus(verifiers=[verifier, verifier], drafters=[drafter])
    status_view.show_status(api.GetStatusResponse(models=[model]))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == ["verifier 1", "verifier 2", "drafter"]
    assert [*cells(lines)] == ["verifier1", "verifier2", "drafter"]


def test_what_a_service_does_not_say_is_no_figure() -> None:
    """A service that never answered has no line."""
    older = api.ReplicaStatus(model="target", device="cpu", dtype="float32", exactness="exact")
    lines = status_view.held_lines([("verifier", older), ("drafter", api.ReplicaStatus())])
    assert cells(lines) == {"verifier": ("target", "cpu", "float32", *"-----", "exact")}
    assert status_view.held_lines([("drafter", api.ReplicaStatus())]) == []


def test_users_are_shown_the_table_as_it_is_and_told_what_its_columns_are() -> None:
    page = ROOT / "docs" / "usage.md"
    shown = [block.text.splitlines() for block in blocks(page) if block.kind == "text"]
    (table,) = (lines for lines in shown if lines[0].split() == [*status_view.HELD])
    assert [*cells([*table, ""])] == ["verifier", "drafter"]
    assert all(f"\n| `{name}` | " in page.read_text("utf-8") for name in status_view.HELD[1:])
    for other in (ROOT / "README.md", ROOT / "docs" / "operating.md"):
        assert "usage.md#what-is-served)" in other.read_text("utf-8"), other
