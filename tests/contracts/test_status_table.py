"""What `tandem status` and `tandem top` print."""

from __future__ import annotations

import pytest
from rich.console import Console

from tandem.orchestrator.cli import client, status_view, terminal, top
from tandem.orchestrator.cli.front_end import FrontEnd
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

LONG = "verifier-of-the-large-model.in-the-second-rack.of-the-cluster.example.com:7001"


class Orchestrator(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Reports a verifier that serves, or does not; or none, or another problem."""

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
            requests_finished=12,
            requests_failed=1,
        )
        model = api.ModelStatus(
            name="target", verifiers=[verifier], drafters=[drafter], last_minute=minute
        )
        model.clients.add(name="c0ffee00", running=2, waiting=1)
        model.history.extend([minute] * request.history)
        workers = [api.RoundWorkerStatus(index=0, connected=True, requests=2)]
        workers.append(api.RoundWorkerStatus(index=1, connected=True, reserve=True))
        return api.GetStatusResponse(
            version="1.2.3",
            models=[model] * self.models,
            round_workers=workers,
            problems=self.problems,
        )


@pytest.mark.parametrize(
    ("orchestrator", "code"),
    [
        (Orchestrator(True), 0),  # requests are served without a drafter
        (Orchestrator(False), 1),
        (Orchestrator(True, "no round worker is up"), 1),
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
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert LONG in lines[1] and lines[1].split()[-5:] == ["3", "25", "%", "1.5", "ms"]
    assert lines[2].split() == ["drafter", "[fe80::1]:7002", *["no", "answer", "in", "2", "s"]]
    assert "round workers: 1 of 1 connected, 2 requests" in lines
    assert (
        "last minute: 213.4 tokens/s, acceptance rate 38 %, mean acceptance length 1.60; goodput "
        "100 tokens/s with drafts, 50 without (2.00 times); 12 finished, 1 failed" in lines
    )
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
    for word in ("38%", "1.60", "[fe80::1]:7002", "c0ffee00", "2.00times", "serving", "noanswer"):
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
        "[fe80::1]:7002",
    ):
        assert word in said
    assert "loading     drafter      for 10 s\n" in said
    assert "Status page: https://[fe80::1]:9003/\n" in said
