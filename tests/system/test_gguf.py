"""GGUF models in a whole system: a quantised drafter changes no text, a quantised target says what
llama.cpp says of it alone.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import PreTrainedModel

from tandem.engine.gguf.model import load
from tandem.orchestrator.frontend.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.conftest import Pair, serve_all, serve_models
from tests.ggufs import Alone, MakeGGUF, needs_llama
from tests.system.test_same_text import ask

pytestmark = [needs_llama, pytest.mark.usefixtures("waited_for")]
TOKENS, SESSIONS = 32, 4
NEAR_TIE = 0.3  # llama.cpp rounds rows to 8 bits
SHAPES: tuple[dict[str, int], ...] = ({}, {"branches": 1}, {"branches": 3})


async def served_texts(pair: Pair, prompts: list[str]) -> tuple[list[list[Any]], Any]:
    """The answers to prompts at once, as a stream and in lockstep, chains and trees; the status."""
    async with serve_models(pair, threads=1) as services, serve_all(services) as tandem:
        found = []
        for shape in SHAPES:
            requests = [ask(prompt, tokens=TOKENS, **shape) for prompt in prompts]
            for request in requests if shape else ():
                request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
                request.speculation.num_speculative_tokens = 6
            found.append(await asyncio.gather(*map(tandem.stub.Generate, requests)))
        (status,) = (await tandem.stub.GetStatus(api.GetStatusRequest())).models
        return found, status


def tokens_of_steps(answers: list[Any]) -> float:
    """The mean."""
    figures = [answer.speculation for answer in answers]
    assert all(each.num_steps_with_guesses == each.num_spec_steps for each in figures)
    steps = sum(each.num_spec_steps for each in figures)
    return 1 + sum(each.num_accepted_draft_tokens for each in figures) / steps


async def test_a_quantised_drafter_changes_no_text(
    make_gguf: MakeGGUF, embedded: Pair, target: PreTrainedModel, prompts: list[str]
) -> None:
    draft, some = make_gguf(embedded.draft, "q4_0"), prompts[:SESSIONS]
    served, status = await served_texts(Pair(embedded.target, draft), some)
    tokenizer = load_tokenizer(embedded.target)
    for number, prompt in enumerate(some):
        ids = tokenizer.encode(prompt).ids
        alone = await asyncio.to_thread(reference.generate, target, ids, TOKENS)
        assert all(list(said[number].token_ids) == alone for said in served)
    assert all(tokens_of_steps(said) > 1.5 for said in served[1:]), "it is of use"
    (drafter,) = status.drafters
    assert (drafter.model, drafter.dtype, drafter.kernels) == (draft.name, "q4_0", "llama.cpp")


async def test_a_gguf_target_says_what_llama_cpp_says_alone(
    make_gguf: MakeGGUF, embedded: Pair, prompts: list[str]
) -> None:
    """Each token is the likeliest by llama.cpp alone behind those before it, or as close to it as
    rounding in another batch.
    """
    file, some = make_gguf(embedded.target, "q8_0"), prompts[:SESSIONS]
    served, status = await served_texts(Pair(file, make_gguf(embedded.draft, "q8_0")), some)
    (verifier,) = status.verifiers
    assert verifier.kernels == "llama.cpp"
    assert verifier.exactness.startswith("exact unavailable")
    model, tokenizer = load(file), load_tokenizer(file)
    alone = Alone(model, 512)
    assert tokenizer.encode(some[0]).ids == load_tokenizer(embedded.target).encode(some[0]).ids
    for number, prompt in enumerate(some):
        ids = tokenizer.encode(prompt).ids
        for said in served:
            text = list(said[number].token_ids)
            assert len(text) == TOKENS or text[-1] in model.end_token_ids
            assert max(alone.behind_the_likeliest(ids, text)) < NEAR_TIE
