"""Drafter and verifier, each over real gRPC, with one answer per opening."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry

from tandem.benchmarks.peers.prompts import tokenised
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.fleet.clients import DrafterClient
from tandem.protos.errors import InvalidRequest, Unusable
from tandem.protos.transport import rpc
from tandem.protos.types import NO_DRAFT, Context, Draft, DraftShape, SamplingParams
from tandem.verifier_service import service as verifier_service
from tests.served import Pair, Services

GREEDY = SamplingParams()
PROMPT = (400, 500, 600, 700)
Fresh = Callable[..., Context]


@pytest.fixture
async def fresh(services: Services, nothing_left: None) -> AsyncIterator[Fresh]:
    """Return a function that makes contexts of new sessions, which are closed at the end."""
    made: list[Context] = []

    def make(tokens: tuple[int, ...] = PROMPT) -> Context:
        made.append(Context(secrets.token_bytes(16), 1, 0, tokens))
        return made[-1]

    yield make
    for context in made:
        await services.verifier_client.close(context.session_id)
        await services.drafter_client.close(context.session_id)


async def test_a_rejected_token_leaves_no_trace_in_the_cache(
    services: Services, fresh: Fresh
) -> None:
    """After a wrong draft, the next token is that of a session which never saw the draft."""
    marred, clean = fresh(), fresh()
    wrong = Draft((9, 10, 11), (-1, 0, 1))
    one = await services.verifier_client.verify(marred, wrong, GREEDY)
    two = await services.verifier_client.verify(clean, NO_DRAFT, GREEDY)
    assert (one.accepted, one.next_token, one.cached_len) == ((), two.next_token, two.cached_len)
    for turn in range(2, 6):
        base, token = len(PROMPT) + turn - 2, (one.next_token,)
        follow = Context(marred.session_id, turn, base, token, one.epoch)
        one = await services.verifier_client.verify(follow, wrong, GREEDY)
        follow = Context(clean.session_id, turn, base, token, two.epoch)
        two = await services.verifier_client.verify(follow, NO_DRAFT, GREEDY)
        assert one.next_token == two.next_token


async def test_a_draft_that_reaches_past_the_context_is_refused(
    services: Services, fresh: Fresh
) -> None:
    with pytest.raises(InvalidRequest, match=r"draft\.tokens"):
        await services.verifier_client.verify(fresh((5,) * 510), Draft.chain((1, 2, 3)), GREEDY)


async def test_a_drafter_of_8_bits_drafts_and_a_verifier_of_8_bits_is_refused(
    services: Services, embedded: Pair, fresh: Fresh
) -> None:
    config = ModelServiceConfig(model=embedded.draft, weights="int8", threads=1)
    chain = DraftShape.chain(1)
    prompts = [tuple(ids[:12]) for ids in tokenised(embedded.target, 12)]
    async with (
        drafter_service.serving(config, CollectorRegistry()) as address,
        rpc.connect(address) as channel,
    ):
        drafters, alike = (DrafterClient(channel), services.drafter_client), 0
        for each in prompts:
            rounded, full = [await one.propose(fresh(each), chain, GREEDY) for one in drafters]
            alike += rounded.draft == full.draft
    assert alike > 9, "rounded weights mostly proposal what full ones do"
    with pytest.raises(Unusable, match="weights int8 is for drafters"):
        async with verifier_service.serving(config, CollectorRegistry()):
            pass
