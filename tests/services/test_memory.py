"""Many more sessions than memory: everybody is served, with the same text, within the bound."""

from __future__ import annotations

import asyncio
import secrets

import psutil
from prometheus_client import CollectorRegistry

import verifier_service.service
from engine.config import ModelServiceConfig
from engine.kv import position_bytes
from engine.model import load
from engine.rooms import BLOCK
from orchestrator.clients import DrafterClient, VerifierClient
from orchestrator.generation import Generation
from orchestrator.policy import Policy
from orchestrator.rounds import run_round
from protos import rpc
from protos.types import NO_DRAFT_SHAPE, SamplingParams
from tests.conftest import Pair

SESSIONS, FITTING, PROMPT, TOKENS = 500, 50, 248, 8
ROOM = 4 * BLOCK  # positions that a session of PROMPT + TOKENS takes
SHORT = BLOCK - TOKENS  # tokens of a prompt that warms up, and takes one block
KERNELS = 40e6  # bytes: the matrix library keeps code for every number of rows it has met


async def complete(
    verifier: VerifierClient, drafter: DrafterClient, number: int, length: int = PROMPT
) -> list[int]:
    """The completion of a prompt of its own, in plain rounds."""
    prompt = tuple((number * 7919 + place * 31) % 4000 + 5 for place in range(length))
    generation = Generation(secrets.token_bytes(16), prompt, SamplingParams(), TOKENS)
    while generation.finish is None:
        await run_round(generation, drafter, verifier, Policy.of(NO_DRAFT_SHAPE))
    await verifier.close(generation.session_id)
    return generation.completion


async def test_ten_times_more_sessions_than_memory_all_finish_with_the_same_text(
    embedded: Pair,
) -> None:
    model = load(embedded.target)
    kv_bytes = FITTING * ROOM * position_bytes(model.layers, model.dtype)
    del model
    config = ModelServiceConfig(
        model=embedded.target,
        kv_bytes=kv_bytes,
        context_length=5 * BLOCK,
        max_sessions=SESSIONS,
    )
    registry = CollectorRegistry()
    async with (
        verifier_service.service.serving(config, registry) as address,
        rpc.connect(address) as channel,
    ):
        verifier, drafter = VerifierClient(channel), DrafterClient(channel)

        async def several(numbers: range, length: int = PROMPT) -> list[list[int]]:
            return await asyncio.gather(*(complete(verifier, drafter, n, length) for n in numbers))

        for _ in range(2):  # kernels for steps of all sizes are made once
            await several(range(FITTING), SHORT)
            await several(range(4))
        warm = highest = psutil.Process().memory_info().rss
        alone = [await complete(verifier, drafter, number) for number in range(0, SESSIONS, 25)]
        crowd = asyncio.ensure_future(several(range(SESSIONS)))
        while not crowd.done():
            highest = max(highest, psutil.Process().memory_info().rss)
            usage = registry.get_sample_value("tandem_kv_cache_usage_perc")
            assert usage is not None and usage <= 1
            await asyncio.wait((crowd,), timeout=0.1)
        together = await crowd
        sessions = (await verifier.describe(5)).sessions
    assert together[::25] == alone
    assert all(len(completion) == TOKENS for completion in together)
    assert sessions == 0
    assert kv_bytes / 2 < highest - warm <= 1.1 * kv_bytes + KERNELS, "the pool was used, and bound"
