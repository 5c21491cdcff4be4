"""A verifier that still answers, but takes seconds for each pass: its streams go on at another."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.engine.config import ModelServiceConfig
from tandem.engine.runner import HFRunner
from tandem.orchestrator.fleet.slowness import SLOW_SECONDS
from tandem.verifier_service import service as verifier_service
from tests.conftest import Pair
from tests.system.test_verifier_groups import client_of

OPTIONS = {"max_new_tokens": 200, "ignore_eos": True, "seed": 7}


async def test_a_stream_leaves_a_slow_verifier_for_one_that_was_never_used(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, slow = HFRunner.__call__, set[HFRunner]()
    passes: list[HFRunner] = []

    def run(self: HFRunner, segments: Any) -> Any:
        passes.append(self)
        if self in slow:
            time.sleep(1.5 * SLOW_SECONDS)
        return forward(self, segments)

    monkeypatch.setattr(HFRunner, "__call__", run)
    async with AsyncExitStack() as scope:
        config = ModelServiceConfig(model=embedded.target, threads=1)
        verifiers = [
            await scope.enter_async_context(verifier_service.serving(config, CollectorRegistry()))
            for _ in range(2)
        ]
        client = await client_of(scope, embedded.target, *verifiers)
        stream = client.stream("Once", **OPTIONS)
        async with stream as chunks:
            await anext(aiter(chunks))
            slow.add(passes[-1])
            passes.clear()
            async for _ in chunks:
                pass
        assert stream.response and stream.response.speculation.verifier_switches == 1
        assert sum(each in slow for each in passes) <= 2, "the pass that runs, and one more"
        later = await client.generate("Once", **OPTIONS)
        assert passes[-1] not in slow
        assert later.speculation.verifier_switches == 0
        assert later.token_ids == stream.response.token_ids
