"""Every option, every rule and every drafting method, through the whole system."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from tandem.benchmarks.options import TOLERANCE, compare
from tandem.benchmarks.peers.prompts import tokenised
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.served import Tandem
from tests.system.test_requests import stream
from tests.system.test_same_text import ask

GREEDY_RULES = [api.ACCEPTANCE_RULE_REJECT, api.ACCEPTANCE_RULE_TOP1]
METHODS = [api.DRAFT_METHOD_TREE, api.DRAFT_METHOD_MEDUSA_LITE, api.DRAFT_METHOD_NGRAM]

pytestmark = pytest.mark.usefixtures("nothing_left", "waited_for")


async def test_answers_are_the_same_with_and_without_drafts_under_any_options(
    tandem: Tandem, target: PreTrainedModel
) -> None:
    prompts = tokenised(tandem.services.pair.target, 80)
    differing, far, tokens, _ = await compare(tandem.stub, target, prompts, 40, seed=1, at_once=8)
    assert not differing
    assert far <= TOLERANCE and tokens > 400


@pytest.mark.parametrize("rule", GREEDY_RULES, ids=api.AcceptanceRule.Name)
@pytest.mark.parametrize("method", METHODS, ids=api.DraftMethod.Name)
async def test_at_temperature_0_every_rule_gives_the_targets_own_text(
    tandem: Tandem,
    target: PreTrainedModel,
    rule: api.AcceptanceRule.ValueType,
    method: api.DraftMethod.ValueType,
) -> None:
    prompt = "Once upon a time there was a"
    request = ask(prompt, tokens=20, levels=4, branches=2)
    request.speculation.rule, request.speculation.method = rule, method
    answer = await tandem.stub.Generate(request)
    ids = load_tokenizer(tandem.services.pair.target).encode(prompt).ids
    assert list(answer.token_ids) == reference.generate(target, ids, 20)
    assert answer.speculation.rule == rule, "the response says which rule was used"


@pytest.mark.parametrize("rule", GREEDY_RULES, ids=api.AcceptanceRule.Name)
async def test_sampled_drafts_are_accepted_under_every_rule(
    tandem: Tandem, rule: api.AcceptanceRule.ValueType
) -> None:
    request = ask("The king said to his", temperature=0.8, seed=3, tokens=40, levels=4, branches=1)
    request.speculation.rule = rule
    figures = (await tandem.stub.Generate(request)).speculation
    assert figures.num_steps_with_guesses == figures.num_spec_steps
    assert figures.num_draft_tokens > figures.num_accepted_draft_tokens > 10


async def test_log_probabilities_come_with_the_tokens_of_every_chunk(tandem: Tandem) -> None:
    request = ask("The king said", temperature=0.7, seed=1, tokens=30)
    request.logprobs = 2
    request.stopping.stop.append("e")
    request.stopping.min_new_tokens = 10
    events = [event async for event in tandem.stub.StreamGenerate(stream(request))]
    chunks, answer = [event.chunk for event in events[:-1]], events[-1].complete
    assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
    assert [each for chunk in chunks for each in chunk.logprobs] == list(answer.logprobs)
    assert len(answer.token_ids) >= 10
    assert all(len(each.top_ids) == 2 for each in answer.logprobs)
