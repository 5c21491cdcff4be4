"""GGUF models in a whole system: a quantised drafter changes no text, and a quantised target gives
the text of its dequantised weights alone.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tandem.engine.forward.cpu.kernels import kernels
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.ggufs import MakeGGUF
from tests.served import Pair, serve_all, serve_models
from tests.system.test_same_text import ask

pytestmark = pytest.mark.usefixtures("waited_for")
TOKENS, SESSIONS = 32, 4
SHAPES: tuple[dict[str, int], ...] = ({}, {"branches": 1}, {"branches": 3})


async def served_texts(pair: Pair, prompts: list[str]) -> tuple[list[list[Any]], Any]:
    """Return the answers to concurrent prompts, as a stream and in lockstep, with chains and trees,
    and the status.
    """
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
    (drafter,), (verifier,) = status.drafters, status.verifiers
    assert (drafter.model, drafter.dtype) == (draft.name, "float32, weights in q4_0")
    (same,) = {re.sub(r"fused \d+ of \d+$", "fused", it.kernels) for it in (drafter, verifier)}
    assert same.endswith(", fused") or not kernels()  # the machine may have no kernels


@pytest.mark.parametrize(
    "kind", ["q4_0", pytest.param("q8_0", marks=pytest.mark.long("the same in another kind"))]
)
async def test_a_gguf_target_says_what_its_dequantised_weights_say(
    kind: str, make_gguf: MakeGGUF, embedded: Pair, prompts: list[str]
) -> None:
    file, some = make_gguf(embedded.target, kind), prompts[:SESSIONS]
    served, status = await served_texts(Pair(file, embedded.draft), some)
    (verifier,) = status.verifiers
    assert (verifier.exactness, verifier.dtype) == ("exact", f"float32, weights in {kind}")
    plain: Any = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    tokenizer = load_tokenizer(file)
    for number, prompt in enumerate(some):
        ids = tokenizer.encode(prompt).ids
        alone = await asyncio.to_thread(reference.generate, plain, ids, TOKENS)
        assert all(list(said[number].token_ids) == alone for said in served)
    assert all(tokens_of_steps(said) > 1.5 for said in served[1:]), "it has draft trees"
