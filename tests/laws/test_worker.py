"""A round worker closes what it opened, whatever ends the request and however often it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.worker import RoundWorkerService
from protos.errors import DeadlineExceeded
from protos.tandem.v1 import rounds_pb2
from protos.types import Context, Draft, DraftShape, Proposal, SamplingParams, Verdict

SESSION = b"0123456789abcdef"


@dataclass
class Service:
    """A drafter and a verifier in one; the first `failures` closings get no answer in time."""

    failures: int
    open: set[bytes] = field(default_factory=set)

    async def propose(self, context: Context, shape: DraftShape, _: SamplingParams) -> Proposal:
        self.open.add(context.session_id)
        return Proposal(Draft.chain((1,)), context.length, 1)

    async def verify(self, context: Context, draft: Draft, _: SamplingParams) -> Verdict:
        self.open.add(context.session_id)
        return Verdict((), 2, context.length, 1)

    async def close(self, session_id: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise DeadlineExceeded("no answer in time")
        self.open.discard(session_id)


@pytest.mark.parametrize(("schedule", "levels", "decided"), [(1, 2, 1), (2, 2, 0), (1, 0, 0)])
async def test_only_those_for_whom_goodput_decides_count_in_its_trials(
    schedule: int, levels: int, decided: int
) -> None:
    service = Service(failures=0)
    worker = RoundWorkerService(service, service)
    request = rounds_pb2.RunRequest(prompt=[5], max_new_tokens=5, session_id=SESSION)
    request.schedule, request.shape.levels = schedule, levels  # type: ignore[assignment]
    request.shape.branches = request.shape.nodes = 1
    context: Any = None
    steps: Any = worker.Run(request, context)
    await anext(steps)
    counts = worker._load.running, sum(each.running for each in worker._goodput.values())
    assert counts == (1, decided)
    await steps.aclose()
    await worker.drained()
    assert (worker._load.running, *(each.running for each in worker._goodput.values())).count(
        0
    ) == 10


@pytest.mark.parametrize("read", [1, 5])
async def test_a_session_is_closed_even_if_the_first_closings_are_lost(read: int) -> None:
    drafter, verifier = Service(failures=1), Service(failures=2)
    worker = RoundWorkerService(drafter, verifier)
    request = rounds_pb2.RunRequest(prompt=[5], max_new_tokens=5, session_id=SESSION)
    request.shape.levels = request.shape.branches = request.shape.nodes = 1
    context: Any = None
    steps: Any = worker.Run(request, context)
    for _ in range(read):
        await anext(steps)
    assert (drafter.open, verifier.open) == ({SESSION}, {SESSION})
    await steps.aclose()
    await worker.drained()
    assert (drafter.open, verifier.open) == (set(), set())
