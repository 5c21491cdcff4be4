"""Which verifier a stream moves to: one that computes the same while there is one, and never a slow
one. The answer says when there was none.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem import AsyncClient
from tandem.engine.config import ModelServiceConfig
from tandem.engine.runner import HFRunner
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.orchestrator.links import policy
from tandem.protos.transport import heartbeat, rpc
from tandem.verifier_service import service as verifier_service
from tests.served import Pair
from tests.waiting import LIMIT

OPTIONS = {"max_new_tokens": 60, "ignore_eos": True, "seed": 7}


@dataclass
class Fleet:
    """Verifiers and a front end without a drafter."""

    pair: Pair
    scope: AsyncExitStack

    async def verifier(self, dtype: str) -> tuple[AsyncExitStack, str]:
        """Start a verifier; return what ends it, and its address."""
        own = await self.scope.enter_async_context(AsyncExitStack())
        config = ModelServiceConfig(model=self.pair.target, threads=1, dtype=dtype)
        serving = verifier_service.serving(config, CollectorRegistry())
        return own, await own.enter_async_context(serving)

    async def client(self, *verifiers: str) -> AsyncClient:
        """Return a client of a front end that has these verifiers."""
        config = OrchestratorConfig(
            verifier=",".join(verifiers), tokenizer=self.pair.target, port=0, ray=False
        )
        serving = server.serving(config, CollectorRegistry())
        address = await self.scope.enter_async_context(serving)
        return await self.scope.enter_async_context(AsyncClient(address))


@pytest.fixture
async def fleet(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(heartbeat, "MAX_MISSED", 1000)  # a late verifier does not count as lost
    async with AsyncExitStack() as scope:
        yield Fleet(embedded, scope)


async def test_a_stream_that_goes_on_with_another_arithmetic_says_so(fleet: Fleet) -> None:
    verifiers: list[tuple[AsyncExitStack, VerifierClient]] = []
    addresses = []
    for dtype in ("float32", "bfloat16"):
        own, where = await fleet.verifier(dtype)
        addresses.append(where)
        channel = await fleet.scope.enter_async_context(rpc.connect(where))
        verifiers.append((own, VerifierClient(channel)))
    described = [await client.describe(LIMIT) for _, client in verifiers]
    assert len({each.fingerprint for each in described}) == 2
    assert len({each.weights_fingerprint for each in described} - {""}) == 1
    client = await fleet.client(*addresses)
    stream = client.stream("Once", **OPTIONS)
    async with stream as chunks:
        await anext(aiter(chunks))
        for own, verifier in verifiers:
            if (await verifier.describe(LIMIT)).sessions:
                await own.aclose()
                break
        async for _ in chunks:
            pass
    assert stream.response and stream.response.usage.completion_tokens == OPTIONS["max_new_tokens"]
    summary = stream.response.speculation
    assert (summary.verifier_switches, summary.verifier_group_changes) == (1, 1)
    whole = await client.generate("Once", max_new_tokens=20)
    assert whole.speculation.verifier_group_changes == 0


async def test_a_stream_leaves_a_slow_verifier_for_one_that_was_never_used(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow verifier still answers, but takes seconds for each pass."""
    forward, slow = HFRunner.__call__, set[HFRunner]()
    passes: list[HFRunner] = []

    def run(self: HFRunner, segments: Any) -> Any:
        passes.append(self)
        if self in slow:
            time.sleep(1.5 * policy.SLOW_SECONDS)
        return forward(self, segments)

    monkeypatch.setattr(HFRunner, "__call__", run)
    verifiers = [(await fleet.verifier("float32"))[1] for _ in range(2)]
    client = await fleet.client(*verifiers)
    stream = client.stream("Once", **OPTIONS)
    async with stream as chunks:
        await anext(aiter(chunks))
        slow.add(passes[-1])
        passes.clear()
        async for _ in chunks:
            pass
    assert stream.response and stream.response.speculation.verifier_switches == 1
    later = await client.generate("Once", **OPTIONS)
    assert passes[-1] not in slow
    assert later.speculation.verifier_switches == 0
    assert later.token_ids == stream.response.token_ids
