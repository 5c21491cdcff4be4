"""Sampling defaults of a model's makers become the defaults of requests, over both APIs."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from structlog.testing import capture_logs
from transformers import PreTrainedModel

from tandem import models
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.protos.generation import GenerationDefaults
from tandem.v1 import orchestrator_pb2 as api
from tests import reference
from tests.http_served import PROMPT, Door, serve_http
from tests.served import Pair, Services, Tandem, serve_all, serve_models
from tests.waiting import LIMIT

TOKENS, SEED = 24, 5
MADE: dict[str, Any] = {"temperature": 0.5, "top_k": 5, "top_p": 0.75, "repetition_penalty": 1.25}
UNUSED = {"no_repeat_ngram_size": 3, "bad_words_ids": [[7]]}


@pytest.fixture(scope="module")
def suppressed(embedded: Pair, target: PreTrainedModel) -> list[int]:
    """Return tokens that the target uses otherwise: its first token and another one."""
    prompt = load_ids(embedded.target)
    said = reference.generate(target, prompt, TOKENS)
    return [said[0], said[5]]


def load_ids(folder: Path) -> list[int]:
    """Return the prompt's tokens."""
    ids: list[int] = load_tokenizer(folder).encode(PROMPT).ids
    return ids


def with_config(folder: Path, **settings: Any) -> Path:
    """Return the embedded target with another generation_config.json."""
    shutil.copytree(models.TARGET, folder, dirs_exist_ok=True)
    file = folder / "generation_config.json"
    given = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(given | settings), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
async def made(
    tmp_path_factory: pytest.TempPathFactory, embedded: Pair
) -> AsyncIterator[tuple[Services, list[Any]]]:
    """Serve the target with defaults; yields it with the log lines of its start."""
    folder = with_config(tmp_path_factory.mktemp("made"), **MADE, **UNUSED)
    with capture_logs() as lines:
        async with serve_models(Pair(folder, embedded.draft)) as services:
            yield services, list(lines)


@pytest.fixture(scope="module")
async def door(made: tuple[Services, list[Any]]) -> AsyncIterator[Door]:
    services, _ = made
    async with serve_http(services, services.pair.target) as door:
        yield door


async def text(stub: Any, **sampling: Any) -> str:
    """Return what is generated with these settings of a request, and no others."""
    request = api.GenerateRequest(text=PROMPT, sampling=api.Sampling(seed=SEED, **sampling))
    request.stopping.max_new_tokens = TOKENS
    return str((await stub.Generate(request)).text)


async def test_a_request_that_says_nothing_is_drawn_as_the_makers_set_it(
    door: Door, tandem: Tandem
) -> None:
    """The text equals that of a request which sets these values explicitly, to the same model
    without defaults.
    """
    wanted = await text(tandem.stub, **MADE)
    assert await text(door.stub) == wanted != await text(tandem.stub)
    async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none") as client:
        answer = await client.completions.create(
            model=(await client.models.list()).data[0].id,
            prompt=PROMPT,
            seed=SEED,
            max_tokens=TOKENS,
        )
    assert answer.choices[0].text == wanted


async def test_what_a_request_says_is_taken(door: Door, tandem: Tandem) -> None:
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert await text(door.stub, **off) == await text(tandem.stub)
    assert await text(door.stub, **off | {"temperature": 0.0}) == await text(
        tandem.stub, temperature=0.0
    )


async def test_defaults_can_be_switched_off(
    made: tuple[Services, list[Any]], tandem: Tandem
) -> None:
    services, _ = made
    async with serve_all(services, generation_config="none") as plain:
        assert await text(plain.stub) == await text(tandem.stub)


async def test_the_verifier_reports_them_and_names_what_it_does_not_do(
    made: tuple[Services, list[Any]], services: Services
) -> None:
    served, lines = made
    described = await served.verifier_client.describe(LIMIT)
    assert described.generation == GenerationDefaults(**MADE)
    usual = await services.verifier_client.describe(LIMIT)
    assert usual.generation == GenerationDefaults()
    said = [line["settings"] for line in lines if "generation_config.json" in line["event"]]
    assert said == ["bad_words_ids, no_repeat_ngram_size"]


async def test_suppressed_tokens_are_in_no_text_with_drafts_and_without(
    tmp_path: Path, embedded: Pair, target: PreTrainedModel, suppressed: list[int]
) -> None:
    """The drafter learns the suppressed tokens, too, and proposes none of them."""
    first, other = suppressed
    settings = {"suppress_tokens": [other], "begin_suppress_tokens": [first]}
    folder, prompt = with_config(tmp_path, **settings), load_ids(embedded.target)
    async with (
        serve_models(Pair(folder, embedded.draft)) as services,
        serve_all(services) as tandem,
    ):
        answers = []
        for levels in (0, 4):
            request = api.GenerateRequest(token_ids=api.TokenIds(ids=prompt))
            request.sampling.temperature = 0
            request.stopping.max_new_tokens = TOKENS
            request.speculation.num_speculative_tokens = levels
            answers.append(list((await tandem.stub.Generate(request)).token_ids))
    ids = target.generate(
        **as_tensors(prompt), max_new_tokens=TOKENS, do_sample=False, pad_token_id=1, **settings
    )
    wanted = ids[0, len(prompt) :].tolist()
    assert answers == [wanted, wanted]
    assert wanted[0] != first and other not in wanted


def as_tensors(prompt: list[int]) -> dict[str, Any]:
    """Return a prompt as `generate()` takes it."""
    ids = torch.tensor([prompt])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
