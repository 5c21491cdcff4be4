"""A target that knows a few tokens more than the drafter, as fine-tuned models do: drafts are those
of a shared tokenizer, and nothing is translated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tandem import models
from tandem.benchmarks.peers.prompts import tokenised
from tandem.orchestrator.cli.plan import Plan
from tandem.protos.fingerprint import fingerprint
from tests import reference
from tests.served import Pair, Tandem, serve_all, serve_models
from tests.system.test_foreign import TOKENS, in_lockstep

OWN = 4096  # tokens of the embedded pair
ADDED = ("<think>", "</think>", "<tool>")

pytestmark = pytest.mark.usefixtures("waited_for")


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target with tokens more."""
    folder = tmp_path_factory.mktemp("larger")
    network = AutoModelForCausalLM.from_pretrained(models.TARGET, dtype=torch.float32)
    network.resize_token_embeddings(OWN + len(ADDED), mean_resizing=False)
    network.save_pretrained(folder)
    content = json.loads((models.TARGET / "tokenizer.json").read_text(encoding="utf-8"))
    like = content["added_tokens"][0]
    content["added_tokens"] += [
        like | {"id": OWN + place, "content": name} for place, name in enumerate(ADDED)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def alone(larger: Path) -> PreTrainedModel:
    """The target as transformers runs it."""
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(larger, dtype=torch.float32)
    return network.eval()


@pytest.fixture(scope="module")
async def nearly(larger: Path) -> AsyncIterator[Tandem]:
    """That target, and the embedded drafter."""
    async with (
        serve_models(Pair(larger, models.DRAFT), {"speaks": larger}) as services,
        serve_all(services) as tandem,
    ):
        yield tandem


async def answers(tandem: Tandem, prompts: list[tuple[int, ...]]) -> list[Any]:
    """Of greedy requests whose steps wait for their guesses."""
    requests = [in_lockstep(list(prompt)) for prompt in prompts]
    return await asyncio.gather(*map(tandem.stub.Generate, requests))


async def test_a_few_tokens_more_cost_no_draft(
    nearly: Tandem, tandem: Tandem, alone: PreTrainedModel
) -> None:
    """As many are accepted as of the same models with the same tokenizer."""
    prompts = tokenised(models.TARGET, 4)
    found, usual = await answers(nearly, prompts), await answers(tandem, prompts)
    for prompt, one, other in zip(prompts, found, usual, strict=True):
        assert list(one.token_ids) == list(other.token_ids)
        assert list(one.token_ids) == reference.generate(alone, list(prompt), TOKENS)
        assert one.speculation.acceptance_histogram == other.speculation.acceptance_histogram
    assert sum(each.speculation.num_accepted_draft_tokens for each in found) > TOKENS


async def test_a_text_with_tokens_that_the_drafter_lacks_is_the_targets_own(
    nearly: Tandem, alone: PreTrainedModel
) -> None:
    """It is fed others in their places, and drafts on."""
    prompts = [(*prompt[:3], OWN, *prompt[3:], OWN + 2) for prompt in tokenised(models.TARGET, 4)]
    for prompt, answer in zip(prompts, await answers(nearly, prompts), strict=True):
        assert list(answer.token_ids) == reference.generate(alone, list(prompt), TOKENS)
        assert answer.speculation.num_draft_tokens > 0


async def test_the_drafter_is_one_with_the_targets_tokens(nearly: Tandem, larger: Path) -> None:
    described = await nearly.services.drafter_client.describe(60.0)
    assert described.tokenizer_fingerprint == fingerprint(larger) != fingerprint(models.DRAFT)
    assert described.vocab_size == OWN + len(ADDED)


def test_up_has_it_draft_without_translating(larger: Path) -> None:
    plan = Plan(larger, models.DRAFT, port=0, ray=False)
    flag = f"--speaks={larger}"
    assert [flag in flags for _, _, flags in plan.services()] == [False, True, False]
    assert not plan.translates
