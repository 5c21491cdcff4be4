"""Requests whose round workers run on Ray, and are killed or stopped."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
import pytest

from tandem import AsyncClient
from tandem.benchmarks.peers.round_workers import connected
from tandem.protos.transport import heartbeat
from tests.conftest import Services, Tandem
from tests.system.test_requests import scraped, stream
from tests.system.test_same_text import ask


def round_workers() -> list[psutil.Process]:
    """The Ray actors that this process started."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if each.cmdline()[:1] == ["ray::RoundWorker"]:
                found.append(each)
    assert found
    return found


@pytest.mark.long("starts Ray, stops and kills its round workers")
@pytest.mark.parametrize("strike", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_lost_round_worker_costs_a_resume_and_neither_a_token_nor_a_session(
    strike: signal.Signals,
    tandem_on_ray: Tandem,
    tandem: Tandem,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "MISSED", 5)
    async with AsyncClient(tandem_on_ray.address) as client:
        await connected(client, 2)
    requests = [ask("Once there was", temperature=1.0, seed=seed, tokens=60) for seed in range(4)]
    calm = [list((await tandem.stub.Generate(request)).token_ids) for request in requests]
    calls = [tandem_on_ray.stub.StreamGenerate(stream(request)) for request in requests]
    streams = [aiter(call) for call in calls]
    begun = [await anext(events) for events in streams]
    workers = round_workers()
    for worker in workers:
        worker.send_signal(strike)
    texts = []
    for first, rest in zip(begun, streams, strict=True):
        events = [first, *[event async for event in rest]]
        texts.append([token for event in events for token in event.chunk.token_ids])
    assert texts == calm
    for worker in workers:
        with suppress(psutil.Error):
            worker.send_signal(signal.SIGCONT)
    assert scraped(tandem_on_ray.metrics_url)["tandem_request_resumes_total"] > 0
    await services.assert_no_session_is_left()
