"""The main promise: the text is the same as the target's alone, with any drafter or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.types import SamplingParams
from tandem.protos.wire.sampling import decode_sampling, encode_sampling
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.served import Pair, Tandem, serve_all, serve_models

TOKENS = 40
AT_ONCE = 16

MakeModel = Callable[[str, int], Path]


def ask(prompt: str | list[int], **options: Any) -> api.GenerateRequest:
    """Return a request; `levels` and `branches` shape the draft."""
    request = api.GenerateRequest(
        stopping=api.Stopping(max_new_tokens=options.get("tokens", TOKENS))
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    request.sampling.temperature = options.get("temperature", 0)
    if "seed" in options:
        request.sampling.seed = options["seed"]
    if "levels" in options:
        request.speculation.num_speculative_tokens = options["levels"]
    if "branches" in options:
        request.speculation.branches = options["branches"]
    return request


async def texts(stub: Any, requests: list[api.GenerateRequest]) -> list[tuple[int, ...]]:
    """Return the completions of many requests, some of them concurrent."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(request: api.GenerateRequest) -> tuple[int, ...]:
        async with places:
            return tuple((await stub.Generate(request)).token_ids)

    return await asyncio.gather(*(one(request) for request in requests))


@pytest.fixture(scope="module")
async def random_drafter(embedded: Pair, make_model: MakeModel) -> AsyncIterator[Tandem]:
    """Run the trained target with a drafter that knows nothing."""
    async with (
        serve_models(Pair(embedded.target, make_model("llama", 5))) as services,
        serve_all(services) as tandem,
    ):
        yield tandem


@pytest.fixture(scope="module")
def tokenizer(embedded: Pair) -> Tokenizer:
    return load_tokenizer(embedded.target)


async def test_greedy_text_is_generates_own(
    tandem: Tandem, target: PreTrainedModel, tokenizer: Tokenizer, prompts: list[str]
) -> None:
    """The text passes client, orchestrator, drafter and verifier, and is compared to `generate()`
    of the target.
    """
    some = prompts[::8]
    served = await texts(tandem.stub, [ask(prompt) for prompt in some])
    differing = []
    for prompt, completion in zip(some, served, strict=True):
        ids = tokenizer.encode(prompt).ids
        alone = tuple(await asyncio.to_thread(reference.generate, target, ids, TOKENS))
        if completion != alone:
            place = next(
                i for i, (a, b) in enumerate(zip(completion, alone, strict=False)) if a != b
            )
            margin = reference.margins(target, ids, list(alone))[place]
            differing.append(
                f"{prompt!r} differs at token {place}, where the margin is {margin:.2g}"
            )
    assert not differing


@pytest.mark.parametrize(
    "temperature",
    [0.7, pytest.param(1.0, marks=pytest.mark.long("the same at another temperature"))],
)
async def test_one_text_per_prompt_and_seed_whatever_the_draft(
    tandem: Tandem,
    random_drafter: Tandem,
    target: PreTrainedModel,
    tokenizer: Tokenizer,
    prompts: list[str],
    temperature: float,
) -> None:
    numbered = list(enumerate(prompts[:6]))

    def requests(**shape: int) -> list[api.GenerateRequest]:
        return [
            ask(prompt, temperature=temperature, seed=seed, **shape) for seed, prompt in numbered
        ]

    undrafted = await texts(tandem.stub, requests(levels=0))
    for shape in ({}, {"levels": 8, "branches": 1}, {"levels": 4, "branches": 3}):
        for drafter in (tandem, random_drafter):
            assert await texts(drafter.stub, requests(**shape)) == undrafted, shape
    for (seed, prompt), served in list(zip(numbered, undrafted, strict=True))[:5]:
        rounded = decode_sampling(encode_sampling(SamplingParams(temperature, seed=seed)))
        ids = tokenizer.encode(prompt).ids
        alone = await asyncio.to_thread(reference.sample, target, ids, TOKENS, rounded, 0)
        assert tuple(alone) == served


async def test_requests_at_once_read_as_if_alone(
    tandem: Tandem, prompts: list[str], nothing_left: None
) -> None:
    mixed = [
        ask(prompt[: 10 + 7 * n], temperature=n % 3 / 2, seed=n, tokens=8 + 5 * n)
        for n, prompt in enumerate(prompts[:8])
    ]
    alone = [await tandem.stub.Generate(request) for request in mixed]
    together = await asyncio.gather(*(tandem.stub.Generate(request) for request in mixed))
    assert [r.text for r in together] == [r.text for r in alone]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]


@pytest.mark.usefixtures("waited_for")
@pytest.mark.parametrize(
    ("family", "own_drafter"),
    [("gpt2", True), ("gpt_neox", False), ("llama", True), ("qwen2", False)],
)
async def test_other_architectures_keep_the_promise(
    family: str, own_drafter: bool, make_model: MakeModel
) -> None:
    """A tiny random target has itself as the drafter, so that all drafts are accepted, or another
    random model.
    """
    folder = make_model(family, 0)
    draft = folder if own_drafter else make_model(family, 1)
    alone = AutoModelForCausalLM.from_pretrained(folder).eval()
    rows = [[37 * n % 4000 + 2, 91, 17 * n % 4000 + 2] for n in range(4)]
    async with (
        serve_models(Pair(folder, draft)) as services,
        serve_all(services) as tandem,
    ):
        greedy = [ask(row, levels=6, branches=1) for row in rows]
        streamed = await texts(tandem.stub, greedy)
        for request in greedy:
            request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
        lockstep = await asyncio.gather(*(tandem.stub.Generate(request) for request in greedy))
        seeded = [[ask(row, temperature=1.0, seed=3, levels=n) for row in rows] for n in (0, 5)]
        plain, drafted = [await texts(tandem.stub, requests) for requests in seeded]
    for row, tokens, answer in zip(rows, streamed, lockstep, strict=True):
        assert tokens == tuple(answer.token_ids)
        assert list(tokens) == reference.generate(alone, row, TOKENS)
        figures = answer.speculation
        assert figures.num_steps_with_guesses == figures.num_spec_steps
        assert figures.num_spec_steps == (-(-len(tokens) // 7) if own_drafter else len(tokens))
    assert plain == drafted
