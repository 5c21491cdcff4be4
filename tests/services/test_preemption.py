"""Sessions that grow until the memory for keys and values is full: some wait, all are finished."""

from __future__ import annotations

import asyncio

from transformers import PreTrainedModel

from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.protos.types import SamplingParams
from tests import reference
from tests.conftest import Pair, serve_all, serve_models
from tests.system.test_same_text import ask

SECONDS, TOKENS, STREAMS = 60.0, 300, 8
NEVER = 1e6  # seconds until an idle session is evicted


async def test_sessions_that_fill_the_memory_do_not_block_each_other(
    embedded: Pair, target: PreTrainedModel
) -> None:
    """Memory for three of eight; all have begun before it is full, and none is idle for long."""
    request = ask("Once upon a time there was a", tokens=TOKENS)
    request.stopping.ignore_eos = True
    ids = load_tokenizer(embedded.target).encode(request.text).ids
    wanted = reference.sample(target, ids, TOKENS, SamplingParams(), -1)
    async with (
        serve_models(
            embedded, kv_bytes="7MiB", evict_after=NEVER, session_ttl=2 * NEVER
        ) as services,
        serve_all(services, ray=False) as tandem,
        asyncio.timeout(SECONDS),
    ):
        answers = await asyncio.gather(*(tandem.stub.Generate(request) for _ in range(STREAMS)))
    assert [list(answer.token_ids) for answer in answers] == [wanted] * STREAMS
