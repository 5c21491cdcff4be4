"""GGUF models in a whole system: a quantised drafter changes no text, a quantised target says what
llama.cpp says of it alone.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedModel

from tandem import models
from tandem.engine.gguf.model import load
from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.conftest import Pair, serve_all, serve_models
from tests.ggufs import TYPES, Alone, MakeGGUF, needs_llama
from tests.running_up import running_up

pytestmark = needs_llama
TOKENS, SESSIONS = 64, 8
NEAR_TIE = {"f32": 1e-4, "q8_0": 0.3, "q4_0": 0.3}  # rows are rounded to 8 bits there
LOCKSTEP = {"rule": api.ACCEPTANCE_RULE_TOP1, "num_speculative_tokens": 6}
SHAPES: tuple[dict[str, int], ...] = (
    {},
    {"num_speculative_tokens": 4, "branches": 1},
    LOCKSTEP | {"branches": 1},
    LOCKSTEP | {"branches": 3},
)


def ask(prompt: str, **shape: int) -> api.GenerateRequest:
    """A greedy request."""
    return api.GenerateRequest(
        text=prompt,
        stopping=api.Stopping(max_new_tokens=TOKENS),
        sampling=api.Sampling(temperature=0),
        speculation=api.Speculation(**shape),
    )


async def answers(stub: Any, prompts: list[str], **shape: int) -> list[Any]:
    """All at once."""
    return await asyncio.gather(*(stub.Generate(ask(prompt, **shape)) for prompt in prompts))


def tokens_of_steps_with_drafts(answers: list[Any]) -> float:
    """The mean."""
    figures = [answer.speculation for answer in answers]
    steps = sum(each.num_steps_with_guesses for each in figures)
    return 1 + sum(each.num_accepted_draft_tokens for each in figures) / steps


@pytest.mark.parametrize("kind", TYPES)
async def test_a_quantised_drafter_changes_no_text(
    kind: str,
    make_gguf: MakeGGUF,
    embedded: Pair,
    target: PreTrainedModel,
    prompts: list[str],
) -> None:
    tokenizer, some = load_tokenizer(embedded.target), prompts[:SESSIONS]
    async with (
        serve_models(Pair(embedded.target, make_gguf(embedded.draft, kind))) as services,
        serve_all(services, ray=False) as tandem,
    ):
        served = [await answers(tandem.stub, some, **shape) for shape in SHAPES]
    for number, prompt in enumerate(some):
        ids = tokenizer.encode(prompt).ids
        alone = await asyncio.to_thread(reference.generate, target, ids, TOKENS)
        for said in served:
            assert list(said[number].token_ids) == alone
    assert all(tokens_of_steps_with_drafts(said) > 1.7 for said in served[2:]), "it is of use"


@pytest.mark.parametrize("kind", TYPES)
async def test_a_gguf_target_says_what_llama_cpp_says_alone(
    kind: str, make_gguf: MakeGGUF, embedded: Pair, prompts: list[str]
) -> None:
    """Each token is the likeliest by llama.cpp alone behind those before it, or as close to it as
    rounding in another batch.
    """
    file, some = make_gguf(embedded.target, kind), prompts[:SESSIONS]
    async with (
        serve_models(Pair(file, make_gguf(embedded.draft, kind))) as services,
        serve_all(services, ray=False) as tandem,
    ):
        served = [await answers(tandem.stub, some, **shape) for shape in SHAPES]
        (described,) = (await tandem.stub.GetStatus(api.GetStatusRequest())).models
    assert described.verifiers[0].kernels == "llama.cpp"
    assert described.verifiers[0].exactness.startswith("exact unavailable")
    model, tokenizer = load(file), load_tokenizer(file)
    alone = Alone(model, 512)
    assert tokenizer.encode(some[0]).ids == load_tokenizer(embedded.target).encode(some[0]).ids
    behind = []
    for number, prompt in enumerate(some):
        ids = tokenizer.encode(prompt).ids
        for said in served:
            text = list(said[number].token_ids)
            assert len(text) == TOKENS or text[-1] in model.end_token_ids
            behind += alone.behind_the_likeliest(ids, text)
    assert max(behind) < NEAR_TIE[kind]
    assert np.count_nonzero(behind) <= len(behind) // 50


def test_up_serves_a_gguf_drafter(make_gguf: MakeGGUF, target: PreTrainedModel) -> None:
    """`tandem up --draft FILE`, and what it says of itself."""
    draft, prompt = make_gguf(models.DRAFT, "q8_0"), "Once upon a time, there was a"
    with running_up("--no-ray", "--draft", str(draft)) as up:
        options = "--temperature", "0", "--max-new-tokens", str(TOKENS)
        answer = json.loads(up.run("generate", "--json", prompt, *options).stdout)
        status = json.loads(up.run("status", "--json").stdout)
    (served,) = status["models"]
    (drafter,) = served["drafters"]
    assert [drafter[name] for name in ("serving", "model", "dtype", "kernels")] == [
        True,
        draft.name,
        "q8_0",
        "llama.cpp",
    ]
    ids = load_tokenizer(models.TARGET).encode(prompt).ids
    assert answer["tokenIds"] == reference.generate(target, ids, TOKENS)
