"""A drafter with a shorter context than the target's drafts up to its own context, and no
further.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from grpc.aio import AioRpcError

from tandem.v1 import orchestrator_pb2 as api
from tests.scripted import POSITIONS, TEXT, TOKENS
from tests.served import Pair, Tandem, serve_all, serve_models
from tests.system.test_same_text import ask
from tests.waiting import LIMIT

SHORT, LEVELS = 16, 4
RULES = (api.ACCEPTANCE_RULE_MATCH, api.ACCEPTANCE_RULE_TOP1)

pytestmark = pytest.mark.usefixtures("waited_for")


@pytest.fixture(scope="module")
async def tandem(scripted: Callable[[str, int], Pair]) -> AsyncIterator[Tandem]:
    """Run a target that says a text, and a drafter with a shorter context that knows the text."""
    drafting = {"context_length": SHORT, "draft_cost": 0.0}
    async with (
        serve_models(scripted(TEXT, 0), drafting) as services,
        serve_all(services) as tandem,
    ):
        yield tandem


async def answered(tandem: Tandem, prompt: list[int], rule: int) -> Any:
    """Return an answer whose every step may have a draft."""
    request = ask(prompt, levels=LEVELS, branches=1)
    request.speculation.rule = rule
    return await tandem.stub.Generate(request)


async def drafted(tandem: Tandem) -> int:
    """Return how many of the drafter's tokens were verified so far."""
    (model,) = (await tandem.stub.GetStatus(api.GetStatusRequest())).models
    return int(model.drafters[0].draft_tokens)


@pytest.mark.parametrize("rule", RULES)
async def test_a_drafter_with_a_shorter_context_drafts_up_to_its_own(
    tandem: Tandem, rule: int
) -> None:
    """The text is the target's to its end, and no draft reaches beyond the drafter's context."""
    before = await drafted(tandem)
    answer = await answered(tandem, [5], rule)
    assert (answer.text, list(answer.token_ids)) == (TEXT, [*TOKENS, 0])
    assert len(TOKENS) > SHORT
    assert await drafted(tandem) - before <= SHORT
    if rule == api.ACCEPTANCE_RULE_TOP1:  # steps of this rule wait for their drafts
        assert answer.speculation.num_draft_tokens >= SHORT - LEVELS
        assert answer.speculation.num_accepted_draft_tokens >= SHORT - LEVELS


@pytest.mark.parametrize("rule", RULES)
async def test_a_prompt_beyond_the_drafters_context_is_decoded_without_drafts(
    tandem: Tandem, rule: int
) -> None:
    prompt, before = [5, *TOKENS[:SHORT]], await drafted(tandem)
    answer = await answered(tandem, prompt, rule)
    assert list(answer.token_ids) == [*TOKENS[SHORT:], 0]
    assert await drafted(tandem) == before


async def test_the_front_end_takes_the_targets_context(tandem: Tandem) -> None:
    """The drafter's context is shorter, but does not count."""
    verifier, drafter = tandem.services.verifier_client, tandem.services.drafter_client
    assert (await verifier.describe(LIMIT)).context_length == POSITIONS
    assert (await drafter.describe(LIMIT)).context_length == SHORT
    prompt = [5, *TOKENS]
    left = POSITIONS - len(prompt)
    answer = await tandem.stub.Generate(ask(prompt, tokens=left))
    assert list(answer.token_ids) == [0]
    with pytest.raises(AioRpcError, match=f"maximum context length is {POSITIONS}"):
        await tandem.stub.Generate(ask(prompt, tokens=left + 1))
