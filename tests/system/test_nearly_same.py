"""Tokenizers that differ by a few added tokens, as those of fine-tuned models do: drafts are as
with a shared tokenizer, trees of the target's ids, and nothing is translated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tandem import models
from tandem.benchmarks.peers.prompts import tokenised
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.fingerprint import Likeness, fingerprint
from tandem.protos.types import Context, DraftShape, SamplingParams
from tests import reference
from tests.served import Pair, Tandem, serve_all, serve_models
from tests.system.test_foreign import TOKENS, in_lockstep

OWN = 4096  # number of tokens of the embedded pair
TREE = DraftShape(4, 3, 16)

pytestmark = pytest.mark.usefixtures("waited_for")


@dataclass(frozen=True)
class Nearly:
    """A system whose target has `more` tokens than its drafter, or fewer if the number is
    negative.
    """

    tandem: Tandem
    more: int


def enlarged(model: Path, folder: Path, more: int) -> Path:
    """Write a model with `more` more tokens, for which it was never trained."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.resize_token_embeddings(OWN + more, mean_resizing=False)
    network.save_pretrained(folder)
    content = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    like = content["added_tokens"][0]
    content["added_tokens"] += [
        like | {"id": OWN + place, "content": f"<added {place}>"} for place in range(more)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=[1, 20, -1, -20])
async def nearly(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Nearly]:
    """Serve the embedded pair; the target or the drafter has some more tokens."""
    more, pair = request.param, Pair(models.TARGET, models.DRAFT)
    folder = tmp_path_factory.mktemp("enlarged")
    if more > 0:
        pair = replace(pair, target=enlarged(pair.target, folder, more))
    else:
        pair = replace(pair, draft=enlarged(pair.draft, folder, -more))
    drafting = {"speaks": pair.target}
    async with serve_models(pair, drafting) as services, serve_all(services) as tandem:
        yield Nearly(tandem, more)


@pytest.fixture(scope="module")
def alone(nearly: Nearly) -> PreTrainedModel:
    """Return the target as transformers runs it."""
    folder = nearly.tandem.services.pair.target
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return network.eval()


async def answers(tandem: Tandem, prompts: list[tuple[int, ...]]) -> list[Any]:
    """Return the answers to greedy requests whose steps wait for their proposals, which are
    trees.
    """
    requests = [in_lockstep(list(prompt)) for prompt in prompts]
    for request in requests:
        request.speculation.branches = TREE.branches
    return await asyncio.gather(*map(tandem.stub.Generate, requests))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
async def test_drafts_are_the_trees_of_an_equal_tokenizer(
    nearly: Nearly, tandem: Tandem, temperature: float
) -> None:
    """The trees are equal node by node, with the same noise."""
    sampling = SamplingParams(temperature=temperature, seed=7)
    clients = (each.services.drafter_client for each in (nearly.tandem, tandem))
    drafter, equal = clients
    for name, prompt in enumerate(tokenised(models.TARGET, 4)):
        context = Context(bytes([name] * 16), 1, 0, prompt)
        found, usual = [
            (await client.propose(context, TREE, sampling)).draft for client in (drafter, equal)
        ]
        assert (found.tokens, found.parents) == (usual.tokens, usual.parents)
        assert len(set(found.parents)) < len(found.parents), "a node has several children"
        for client in (drafter, equal):
            await client.close(context.session_id)


async def test_added_tokens_cost_no_acceptance(
    nearly: Nearly, tandem: Tandem, alone: PreTrainedModel
) -> None:
    """The tokens per step are those of the same models with equal tokenizers, and the text is the
    target's own.
    """
    prompts = tokenised(models.TARGET, 4)
    found, usual = await answers(nearly.tandem, prompts), await answers(tandem, prompts)
    for prompt, one, other in zip(prompts, found, usual, strict=True):
        assert list(one.token_ids) == list(other.token_ids)
        assert list(one.token_ids) == reference.generate(alone, list(prompt), TOKENS)
    of_all = [sum(each.speculation.num_spec_steps for each in some) for some in (found, usual)]
    assert of_all[0] == pytest.approx(of_all[1], rel=0.02)
    assert sum(each.speculation.num_accepted_draft_tokens for each in found) > TOKENS


async def test_a_text_with_tokens_that_the_drafter_lacks_is_the_targets_own(
    nearly: Nearly, alone: PreTrainedModel
) -> None:
    """The drafter is fed other tokens in their places, and goes on drafting."""
    last = max(OWN - 1, OWN - 1 + nearly.more)
    prompts = [(*prompt[:3], last, *prompt[3:], last) for prompt in tokenised(models.TARGET, 4)]
    for prompt, answer in zip(prompts, await answers(nearly.tandem, prompts), strict=True):
        assert list(answer.token_ids) == reference.generate(alone, list(prompt), TOKENS)
        assert answer.speculation.num_draft_tokens > 0


async def test_the_drafter_is_one_with_the_targets_tokens_and_says_what_it_masks(
    nearly: Nearly, tandem: Tandem
) -> None:
    services = nearly.tandem.services
    described = await services.drafter_client.describe(60.0)
    assert described.tokenizer_fingerprint == fingerprint(services.pair.target)
    assert described.vocab_size == max(OWN, OWN + nearly.more)
    assert (described.tokenizer, described.masked_tokens) == (Likeness.NEARLY, max(0, -nearly.more))
    equal = await tandem.services.drafter_client.describe(60.0)
    assert (equal.tokenizer, equal.masked_tokens) == (Likeness.EQUAL, 0)


def test_up_has_it_draft_without_translating(nearly: Nearly) -> None:
    pair = nearly.tandem.services.pair
    plan = Plan(pair.target, pair.draft, port=0, ray=False)
    flag = f"--speaks={pair.target}"
    assert [flag in flags for _, _, flags in plan.services()] == [False, True, False]
    assert not plan.translates
