"""Drafter and verifier, each over real gRPC, question by question: streams of one answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.benchmarks.peers.prompts import tokenised
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.engine.metrics import ModelMetrics
from tandem.engine.runner import HFRunner
from tandem.orchestrator.fleet.clients import DrafterClient
from tandem.orchestrator.rounds.generation import Generation
from tandem.protos.errors import Busy, InvalidRequest, SessionMiss, StaleTurn, Unusable
from tandem.protos.transport import rpc
from tandem.protos.types import NO_DRAFT, Context, Draft, DraftShape, SamplingParams
from tandem.verifier_service import service as verifier_service
from tests.conftest import Pair, Services, serve_models

GREEDY = SamplingParams()
PROMPT = (400, 500, 600, 700)


def fresh(tokens: tuple[int, ...] = PROMPT, turn: int = 1) -> Context:
    return Context(secrets.token_bytes(16), turn, 0, tokens)


@pytest.fixture(autouse=True)
async def _nothing_left(nothing_left: None) -> None:
    """Every test here closes what it opens."""


async def test_a_repeated_question_gets_the_same_answer(services: Services) -> None:
    context, sampling = fresh(), SamplingParams(temperature=1.0, seed=5)
    draft = Draft((1, 2, 3), (-1, -1, 0))
    first = await services.verifier_client.verify(context, draft, sampling)
    again = Context(context.session_id, 2, 0, context.tokens)
    second = await services.verifier_client.verify(again, draft, sampling)
    assert second == replace(first, reused=len(context.tokens) - 1), "the prompt is not read again"
    await services.verifier_client.close(context.session_id)


async def test_a_rejected_token_leaves_no_trace_in_the_cache(services: Services) -> None:
    """After a wrong draft the next token is what a session without it would say."""
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
    for context in (marred, clean):
        await services.verifier_client.close(context.session_id)


async def test_an_unknown_session_must_be_sent_from_the_start(services: Services) -> None:
    lost = Context(secrets.token_bytes(16), 1, 10, (5,))
    with pytest.raises(SessionMiss):
        await services.verifier_client.verify(lost, NO_DRAFT, GREEDY)
    with pytest.raises(SessionMiss):
        await services.drafter_client.propose(lost, DraftShape.chain(2), GREEDY)


async def test_an_older_turn_is_refused(services: Services) -> None:
    context = fresh(turn=3)
    await services.verifier_client.verify(context, NO_DRAFT, GREEDY)
    with pytest.raises(StaleTurn):
        await services.verifier_client.verify(context, NO_DRAFT, GREEDY)
    await services.verifier_client.close(context.session_id)


async def test_a_call_meant_for_a_lost_session_is_a_miss(services: Services) -> None:
    context = fresh()
    verdict = await services.verifier_client.verify(context, NO_DRAFT, GREEDY)
    late = Context(context.session_id, 2, 0, PROMPT, epoch=verdict.epoch ^ 1)
    with pytest.raises(SessionMiss):
        await services.verifier_client.verify(late, NO_DRAFT, GREEDY)
    await services.verifier_client.close(context.session_id)


@pytest.mark.parametrize(
    ("context", "draft", "field"),
    [
        (Context(b"short", 1, 0, (1,)), NO_DRAFT, "context.session_id"),
        (fresh(()), NO_DRAFT, "context.tokens"),
        (fresh((5000,)), NO_DRAFT, "context.tokens"),
        (fresh((1,) * 600), NO_DRAFT, "context.tokens"),
        (fresh(), Draft((4096,), (-1,)), "draft.tokens"),
        (fresh(), Draft((1,) * 65, tuple(range(-1, 64))), "draft.tokens"),
    ],
)
async def test_bad_input_is_refused_by_the_fields_name(
    services: Services, context: Context, draft: Draft, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await services.verifier_client.verify(context, draft, GREEDY)
    assert [violation.field for violation in refusal.value.violations] == [field]
    if draft.tokens:  # which came behind the opening
        await services.verifier_client.close(context.session_id)


async def test_drafts_keep_their_shape(services: Services) -> None:
    context = fresh()
    chain = await services.drafter_client.propose(context, DraftShape.chain(5), GREEDY)
    assert chain.draft.parents == (-1, 0, 1, 2, 3)
    assert chain.cached_len == len(PROMPT) + 4
    again = Context(context.session_id, 2, 0, PROMPT, chain.epoch)
    wide = await services.drafter_client.propose(again, DraftShape(4, 3, 12), GREEDY)
    assert len(wide.draft) == 12
    assert max(map(wide.draft.parents.count, wide.draft.parents)) <= 3
    assert wide.draft.tokens[0] == chain.draft.tokens[0]
    await services.drafter_client.close(context.session_id)


async def test_a_draft_is_the_same_whatever_was_cached(services: Services) -> None:
    """Keeping leading nodes of the last draft saves work and changes nothing."""
    sampling, shape, kept = SamplingParams(temperature=0.7, seed=11), DraftShape(5, 3, 14), 0
    drafter, verifier = services.drafter_client, services.verifier_client
    warm = Generation(secrets.token_bytes(16), PROMPT, sampling, 40)
    while warm.finish is None:
        proposal = await drafter.propose(warm.context(), shape, sampling)
        committed = fresh(warm.context().tokens)
        cold = await drafter.propose(committed, shape, sampling)
        assert proposal.draft == cold.draft
        await drafter.close(committed.session_id)
        verdict = await verifier.verify(warm.context(), proposal.draft, sampling)
        path = [proposal.draft.tokens[node] for node in verdict.accepted]
        kept += verdict.accepted[:1] == (0,) and proposal.cached_len > warm.length
        warm.extend(warm.length, (*path, verdict.next_token))
    assert kept > 0
    await drafter.close(warm.session_id)
    await verifier.close(warm.session_id)


async def test_when_all_sessions_are_taken_the_caller_is_told_to_wait(embedded: Pair) -> None:
    async with serve_models(embedded, max_sessions=2, evict_after=60) as services:
        held = [fresh(), fresh()]
        for context in held:
            await services.verifier_client.verify(context, NO_DRAFT, GREEDY)
        with pytest.raises(Busy) as refusal:
            await services.verifier_client.verify(fresh(), NO_DRAFT, GREEDY)
        assert refusal.value.retry_after > 0
        await services.verifier_client.close(held[0].session_id)
        third = fresh()
        await services.verifier_client.verify(third, NO_DRAFT, GREEDY)
        for context in (held[1], third):
            await services.verifier_client.close(context.session_id)


async def test_an_orphaned_session_is_reclaimed(embedded: Pair) -> None:
    async with serve_models(embedded, session_ttl=1.0, evict_after=0.5) as services:
        await services.verifier_client.verify(fresh(), NO_DRAFT, GREEDY)
        assert (await services.verifier_client.describe(5)).sessions == 1
        await services.assert_no_session_is_left()


async def test_calls_that_wait_share_a_forward_pass(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []

    def observe(self: ModelMetrics, report: Any) -> None:
        batches.append(report.sessions)

    def slowly(self: HFRunner, segments: Any) -> Any:
        time.sleep(0.2)
        return forward(self, segments)

    forward = HFRunner.__call__
    monkeypatch.setattr(ModelMetrics, "observe", observe)
    monkeypatch.setattr(HFRunner, "__call__", slowly)
    async with serve_models(embedded) as services:
        contexts = [fresh((100 + n, 200, 300)) for n in range(12)]
        await asyncio.gather(
            *(services.verifier_client.verify(c, NO_DRAFT, GREEDY) for c in contexts)
        )
        assert sum(batches) == 12
        assert max(batches) >= 4
        await asyncio.gather(*(services.verifier_client.close(c.session_id) for c in contexts))


async def test_a_long_context_is_fed_in_chunks_with_the_same_result(services: Services) -> None:
    """Tokens past one chunk, sent at once or bit by bit, lead to the same draw."""
    tokens = tuple(3 + 7 * n % 4000 for n in range(400))
    whole, bits = fresh(tokens), fresh(tokens[:30])
    at_once = await services.verifier_client.verify(whole, NO_DRAFT, GREEDY)
    verdict = await services.verifier_client.verify(bits, NO_DRAFT, GREEDY)
    for turn, base in enumerate(range(30, 400, 37), start=2):
        part = Context(bits.session_id, turn, base, tokens[base : base + 37], verdict.epoch)
        verdict = await services.verifier_client.verify(part, NO_DRAFT, GREEDY)
    assert (verdict.next_token, verdict.cached_len) == (at_once.next_token, at_once.cached_len)
    for context in (whole, bits):
        await services.verifier_client.close(context.session_id)


async def test_a_draft_that_reaches_past_the_context_is_refused_and_harms_nobody(
    services: Services,
) -> None:
    long = fresh((5,) * 510)
    with pytest.raises(InvalidRequest, match=r"draft\.tokens"):
        await services.verifier_client.verify(long, Draft.chain((1, 2, 3)), GREEDY)
    await services.verifier_client.close(long.session_id)
    proposal = await services.drafter_client.propose(long, DraftShape.chain(8), GREEDY)
    assert len(proposal.draft) == 2
    await services.drafter_client.close(long.session_id)


async def test_impossible_tokens_are_not_drafted(services: Services) -> None:
    context, only = fresh(), SamplingParams(temperature=1.0, top_k=1)
    proposal = await services.drafter_client.propose(context, DraftShape(4, 4, 16), only)
    assert proposal.draft.parents == (-1, 0, 1, 2)
    await services.drafter_client.close(context.session_id)


async def test_a_drafter_of_8_bits_drafts_and_a_verifier_of_8_bits_is_refused(
    services: Services, embedded: Pair
) -> None:
    config = ModelServiceConfig(model=embedded.draft, weights="int8")
    registry = CollectorRegistry()
    async with (
        drafter_service.serving(config, registry) as address,
        rpc.connect(address) as channel,
    ):
        rounded, chain = DrafterClient(channel), DraftShape.chain(1)
        contexts = [fresh(tuple(ids[:12])) for ids in tokenised(embedded.target, 40)]
        pairs = [
            [await drafter.propose(each, chain, GREEDY) for each in contexts]
            for drafter in (rounded, services.drafter_client)
        ]
        for drafter, each in product((rounded, services.drafter_client), contexts):
            await drafter.close(each.session_id)
    alike = [one.draft == other.draft for one, other in zip(*pairs, strict=True)]
    assert sum(alike) >= 36, "rounded weights mostly guess what full ones do"
    with pytest.raises(Unusable, match="weights int8 is for drafters"):
        async with verifier_service.serving(config, CollectorRegistry()):
            pass
