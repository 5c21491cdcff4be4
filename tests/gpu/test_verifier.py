"""A verifier and a drafter on a CUDA device, over real gRPC: the text does not depend on drafts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tokenizers import Tokenizer

from tandem import models
from tandem.protos.types import NO_DRAFT, Context, DraftShape, SamplingParams

prometheus, config, rpc, clients, drafter_service, verifier_service = (
    pytest.importorskip(module)  # a rented machine may lack a package that they need
    for module in (
        "prometheus_client",
        "tandem.engine.config",
        "tandem.protos.transport.rpc",
        "tandem.orchestrator.fleet.clients",
        "tandem.drafter_service.service",
        "tandem.verifier_service.service",
    )
)

BEGINNINGS = (
    "Once upon a time, there was a little dog.",
    "Lily and her mom went to the park.",
    "Tom had a red ball. One day,",
    "The old man looked at the sea and",
)
SHAPES = (None, DraftShape.chain(4), DraftShape(4, 4, 16), DraftShape(6, 3, 40))
TOKENS = 150  # the last 96 positions of a row are attended to separately


@asynccontextmanager
async def serving(dtype: str) -> AsyncIterator[tuple[Any, Any]]:
    """Serve the embedded pair on the device; yields clients of the verifier and the drafter."""
    async with AsyncExitStack() as scope:
        channels = []
        for module, folder in ((verifier_service, models.TARGET), (drafter_service, models.DRAFT)):
            settings = config.ModelServiceConfig(model=folder, device="cuda", dtype=dtype)
            registry = prometheus.CollectorRegistry()
            address = await scope.enter_async_context(module.serving(settings, registry))
            channels.append(await scope.enter_async_context(rpc.connect(address)))
        yield clients.VerifierClient(channels[0]), clients.DrafterClient(channels[1])


async def generate(
    verifier: Any,
    drafter: Any,
    prompt: tuple[int, ...],
    sampling: SamplingParams,
    shape: DraftShape | None,
) -> list[int]:
    """Generate a text, drafted in this shape or without drafts."""
    name, text, held, epochs = secrets.token_bytes(16), prompt, [0, 0], [0, 0]

    def context(service: int) -> Context:
        return Context(name, len(text), held[service], text[held[service] :], epochs[service])

    while len(text) < len(prompt) + TOKENS:
        draft = NO_DRAFT
        if shape:
            proposal = await drafter.propose(context(0), shape, sampling)
            draft, epochs[0] = proposal.draft, proposal.epoch
            held[0] = len(text)
        verdict = await verifier.verify(context(1), draft, sampling)
        held[1], epochs[1] = verdict.cached_len, verdict.epoch
        text += (*(draft.tokens[node] for node in verdict.accepted), verdict.next_token)
    await verifier.close(name)
    if shape:
        await drafter.close(name)
    return list(text[len(prompt) :][:TOKENS])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_text_is_the_same_with_any_drafts_and_without(dtype: str, temperature: float) -> None:
    """Requests run one by one without drafts, or all at once, so that every step has another
    batch.
    """
    tokenizer = Tokenizer.from_file(str(models.TARGET / "tokenizer.json"))
    prompts = [tuple(tokenizer.encode(text).ids) for text in BEGINNINGS]
    sampling = SamplingParams(temperature=temperature, seed=7)

    async def run() -> tuple[list[list[int]], list[list[int]]]:
        async with serving(dtype) as pair:
            described = await pair[0].describe(60)
            assert described.device.startswith("cuda") and described.exactness == "exact"
            alone = [await generate(*pair, prompt, sampling, None) for prompt in prompts]
            every = [(prompt, sampling, shape) for shape in SHAPES for prompt in prompts]
            return alone, await asyncio.gather(*(generate(*pair, *each) for each in every))

    alone, together = asyncio.run(run())
    assert [len(text) for text in alone] == [TOKENS] * len(prompts)
    assert together == alone * len(SHAPES)
