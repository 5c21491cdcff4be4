"""With a drafter that has another tokenizer, the text is the target's own, and drafts are
accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from transformers import PreTrainedModel

from tandem import models
from tandem.benchmarks.peers.prompts import tokenised
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.cli.plan import Plan
from tandem.orchestrator.fleet.clients import DrafterClient
from tandem.protos.errors import IncompatibleModels, Unusable
from tandem.protos.fingerprint import Likeness
from tandem.protos.transport import rpc
from tandem.protos.types import Context, DraftShape, SamplingParams
from tandem.v1 import orchestrator_pb2 as api
from tandem.verifier_service import service as verifier_service
from tests import reference
from tests.served import Pair, Services, Tandem, serve_all
from tests.system.test_same_text import ask

TOKENS = 24


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    """Return the drafter's metrics."""
    return CollectorRegistry()


@pytest.fixture(scope="module")
async def foreign(services: Services, registry: CollectorRegistry) -> AsyncIterator[Tandem]:
    """Run the embedded target, and a drafter that has to translate."""
    config = ModelServiceConfig(model=models.FOREIGN, speaks=models.TARGET)
    async with (
        drafter_service.serving(config, registry) as address,
        rpc.connect(address) as channel,
    ):
        pair = Pair(models.TARGET, models.FOREIGN)
        client = DrafterClient(channel)
        served = Services(pair, address, services.verifier, client, services.verifier_client)
        async with serve_all(served) as tandem:
            yield tandem
        await served.assert_no_session_is_left()


def in_lockstep(prompt: list[int]) -> api.GenerateRequest:
    """Return a greedy request whose steps wait for their proposals, so that no proposal is late; at
    temperature 0 this rule gives the target's own text.
    """
    request = ask(prompt, tokens=TOKENS, levels=4, branches=1)
    request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
    return request


@pytest.mark.usefixtures("waited_for")
async def test_the_text_is_the_targets_and_many_of_its_proposals_are_accepted(
    foreign: Tandem, target: PreTrainedModel
) -> None:
    prompts = tokenised(models.TARGET, 4)
    requests = [in_lockstep(list(prompt)) for prompt in prompts]
    answers = await asyncio.gather(*map(foreign.stub.Generate, requests))
    assert [list(answer.token_ids) for answer in answers] == [
        await asyncio.to_thread(reference.generate, target, list(prompt), TOKENS)
        for prompt in prompts
    ]
    figures = [answer.speculation for answer in answers]
    assert all(each.num_steps_with_guesses == each.num_spec_steps for each in figures)
    accepted = sum(each.num_accepted_draft_tokens for each in figures)
    assert accepted > sum(each.num_draft_tokens for each in figures) / 4


async def test_a_closed_session_leaves_no_mirror(foreign: Tandem) -> None:
    drafter = foreign.services.drafter_client
    context = Context(bytes(16), 1, 0, tokenised(models.TARGET, 1)[0])
    first = await drafter.propose(context, DraftShape.chain(2), SamplingParams())
    await drafter.close(bytes(16))
    again = await drafter.propose(context, DraftShape.chain(2), SamplingParams())
    assert again.draft == first.draft and again.epoch != first.epoch
    await drafter.close(bytes(16))


async def test_the_drafter_says_that_it_translates(
    foreign: Tandem, registry: CollectorRegistry
) -> None:
    """The drafter says in its description, in the status and in its metrics that it translates."""
    described = await foreign.services.drafter_client.describe(60.0)
    (model,) = (await foreign.stub.GetStatus(api.GetStatusRequest())).models
    assert described.tokenizer == model.drafters[0].tokenizer == Likeness.FOREIGN
    assert model.verifiers[0].tokenizer == ""
    kind = {"tokenizer": Likeness.FOREIGN}
    assert registry.get_sample_value("tandem_draft_tokenizer_info", kind) == 1
    assert registry.get_sample_value("tandem_draft_masked_tokens") == 0


async def test_a_verifier_has_no_foreign_tokens() -> None:
    config = ModelServiceConfig(model=models.TARGET, speaks=models.TARGET)
    with pytest.raises(Unusable, match="speaks is for drafters"):
        async with verifier_service.serving(config, CollectorRegistry()):
            raise AssertionError("it serves")


def test_up_has_a_drafter_with_another_tokenizer_translate() -> None:
    plan = Plan(models.TARGET, models.FOREIGN, port=0, ray=False)
    flag = f"--speaks={models.TARGET}"
    assert [flag in flags for _, _, flags in plan.services()] == [False, True, False]
    assert plan.translates
    assert not Plan(models.TARGET, models.DRAFT, port=0, ray=False).translates


async def test_an_orchestrator_does_not_serve_a_target_with_other_tokens(
    services: Services,
) -> None:
    served = replace(services, pair=Pair(models.FOREIGN, models.DRAFT))
    with pytest.raises(IncompatibleModels, match="foreign"):
        async with serve_all(served):
            raise AssertionError("it serves")


async def test_a_drafter_with_other_tokens_is_not_used_and_stops_nobody(services: Services) -> None:
    config = ModelServiceConfig(model=models.FOREIGN)
    async with (
        drafter_service.serving(config, CollectorRegistry()) as address,
        serve_all(replace(services, drafter=address)) as tandem,
    ):
        answer = await tandem.stub.Generate(ask("Once upon a time", tokens=8))
        (model,) = (await tandem.stub.GetStatus(api.GetStatusRequest())).models
    assert len(answer.token_ids) == 8 and model.drafters[0].draft_tokens == 0
    assert "another tokenizer" in model.drafters[0].problem
