"""Every option, every rule and every way to draft, through the whole system."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import grpc
import pytest
from transformers import PreTrainedModel

from tandem.benchmarks.options import LOOSE, compare
from tandem.benchmarks.peers.prompts import tokenised
from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.conftest import Pair, Tandem, serve_all, serve_models
from tests.system.test_requests import stream
from tests.system.test_same_text import ask

GREEDY_RULES = [api.ACCEPTANCE_RULE_REJECT, api.ACCEPTANCE_RULE_TOP1]
METHODS = [api.DRAFT_METHOD_TREE, api.DRAFT_METHOD_MEDUSA_LITE, api.DRAFT_METHOD_NGRAM]


@pytest.fixture(scope="module")
async def served(embedded: Pair) -> AsyncIterator[Tandem]:
    """The embedded pair behind an orchestrator with a worker of its own; its drafter always drafts,
    as a fast target may not be worth it.
    """
    async with (
        serve_models(embedded, draft_cost=0) as services,
        serve_all(services, ray=False) as tandem,
    ):
        yield tandem


async def test_answers_are_the_same_with_and_without_drafts_under_any_options(
    served: Tandem, target: PreTrainedModel, nothing_left: None
) -> None:
    prompts = tokenised(served.services.pair.target, 80)
    differing, far, tokens, accepted = await compare(
        served.stub, target, prompts, 120, seed=1, at_once=4
    )
    assert not differing
    assert far <= LOOSE
    assert accepted > 100 and tokens > accepted, "drafts were really used"


@pytest.mark.parametrize("rule", GREEDY_RULES, ids=api.AcceptanceRule.Name)
@pytest.mark.parametrize("method", METHODS, ids=api.DraftMethod.Name)
async def test_at_temperature_0_every_rule_gives_the_targets_own_text(
    served: Tandem,
    target: PreTrainedModel,
    rule: api.AcceptanceRule.ValueType,
    method: api.DraftMethod.ValueType,
) -> None:
    prompt = "Once upon a time there was a"
    request = ask(prompt, tokens=32, levels=4, branches=2)
    request.speculation.rule, request.speculation.method = rule, method
    answer = await served.stub.Generate(request)
    ids = load_tokenizer(served.services.pair.target).encode(prompt).ids
    assert list(answer.token_ids) == reference.generate(target, ids, 32)
    assert answer.speculation.rule == rule, "the response says which rule was used"


@pytest.mark.parametrize("rule", GREEDY_RULES, ids=api.AcceptanceRule.Name)
async def test_sampled_drafts_are_accepted_under_every_rule(
    served: Tandem, rule: api.AcceptanceRule.ValueType, nothing_left: None
) -> None:
    accepted = drafted = 0
    for seed in range(12):
        request = ask("The king said to his", temperature=0.8, seed=seed, tokens=40, levels=4)
        request.speculation.rule = rule
        answer = await served.stub.Generate(request)
        accepted += answer.speculation.num_accepted_draft_tokens
        drafted += answer.speculation.num_draft_tokens
    assert drafted > accepted > drafted / 10 > 0


@pytest.mark.parametrize("rule", GREEDY_RULES, ids=api.AcceptanceRule.Name)
async def test_a_text_that_depends_on_its_drafts_cannot_be_resumed(
    served: Tandem, rule: api.AcceptanceRule.ValueType
) -> None:
    request = ask("The king", temperature=0.8, seed=3)
    request.speculation.rule = rule
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        _ = [event async for event in served.stub.StreamGenerate(stream(request, 3))]
    assert "resume_from needs rule MATCH" in (failure.value.details() or "")


async def test_log_probabilities_come_with_the_tokens_of_every_chunk(served: Tandem) -> None:
    request = ask("The king said", temperature=0.7, seed=1, tokens=30)
    request.logprobs = 2
    request.stopping.stop.append("e")
    request.stopping.min_new_tokens = 10
    events = [event async for event in served.stub.StreamGenerate(stream(request))]
    chunks, answer = [event.chunk for event in events[:-1]], events[-1].complete
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    assert [each for chunk in chunks for each in chunk.logprobs] == list(answer.logprobs)
    assert len(answer.token_ids) >= 10
    assert all(len(each.top_ids) == 2 for each in answer.logprobs)


async def test_barred_ends_come_only_after_the_least_number_of_tokens(served: Tandem) -> None:
    """Half of all tokens end the text, so without a bar it is over at once."""
    ends = random.Random(0).sample(range(4096), 2048)
    request = ask("Once upon a time", tokens=40)
    request.stopping.stop_token_ids.extend(ends)
    short = await served.stub.Generate(request)
    request.stopping.min_new_tokens = 20
    long = await served.stub.Generate(request)
    assert len(short.token_ids) < 15 and short.token_ids[-1] in ends
    assert len(long.token_ids) > 20
    assert not set(long.token_ids[:20]) & set(ends)
