"""A widely used model, SmolLM2-135M-Instruct, with its own chat template, tokenizer and positions,
as a Hugging Face directory and as a GGUF file.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tandem import models
from tandem.engine.exact.exactness import self_test
from tandem.engine.model import reference as reference_texts
from tandem.engine.model.load import load as load_directory
from tandem.engine.runner import HFRunner
from tandem.models.distil.acceptance import tokens_per_step
from tandem.models.smollm2 import FILE
from tests import reference
from tests.http_served import serve_http
from tests.served import Pair, serve_models

FOLDER, GGUF = models.SMOLLM2, models.SMOLLM2 / FILE
QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "Write two sentences about a café in 東京.",
    "Count from 1 to 10.",
)
TOKENS = 40
CONTINUATIONS = 20

pytestmark = [
    pytest.mark.long("loads a real model"),
    pytest.mark.skipif(not (FOLDER / "config.json").exists(), reason="make real-model"),
]


@asynccontextmanager
async def chatting(pair: Pair, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    """Return the official OpenAI client, connected to a system that serves this pair."""
    async with (
        serve_models(pair, max_sessions=4, **options) as services,
        serve_http(services, pair.target) as door,
        AsyncOpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def answers(client: AsyncOpenAI, **options: Any) -> list[str]:
    """Return the greedy answers to all questions, asked at once."""
    (model,) = (await client.models.list()).data

    async def ask(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        answer = await client.chat.completions.create(
            model=model.id, messages=messages, temperature=0, max_tokens=TOKENS, **options
        )
        return answer.choices[0].message.content or ""

    return await asyncio.gather(*map(ask, QUESTIONS))


def prompt_of(question: str) -> list[int]:
    """Return the tokens of a question in the model's own chat template."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize(("dtype", "seed"), [("float32", 0), ("bfloat16", 1)])
def test_no_text_of_the_self_test_has_it_refused(
    dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model passes although rounding moves some of its rows by whole logits."""
    words = reference_texts.TEXT.split(" ")
    monkeypatch.setattr(reference_texts, "TEXT", " ".join(words[50 * seed :] + words[: 50 * seed]))
    seeded = SimpleNamespace(**vars(random) | {"Random": lambda _: random.Random(seed)})
    monkeypatch.setattr(reference_texts, "random", seeded)
    self_test(HFRunner(load_directory(FOLDER, dtype), 2048), "SmolLM2")


@pytest.mark.parametrize("draft", [FOLDER, models.SMOLLM2_DRAFT], ids=["itself", "distilled"])
async def test_its_answers_are_those_of_generate(draft: Path) -> None:
    """With the target itself as draft model, whole drafts are accepted."""
    async with chatting(Pair(FOLDER, draft), dtype="float32") as client:
        served = await answers(client)
    alone = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    for question, answer in zip(QUESTIONS, served, strict=True):
        tokens = reference.generate(alone, prompt_of(question), TOKENS)
        assert answer == tokenizer.decode(tokens, skip_special_tokens=True)


@torch.inference_mode()
def test_the_distilled_drafter_is_small_and_often_right() -> None:
    """An untrained drafter of this vocabulary is never right: 1.0 tokens per step."""
    alone, drafter = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for folder in (FOLDER, models.SMOLLM2_DRAFT)
    )
    assert (models.SMOLLM2_DRAFT / "model.safetensors").stat().st_size <= 16e6
    agreed = []
    for question in QUESTIONS:
        prompt = prompt_of(question)
        text = torch.tensor([prompt + list(reference.generate(alone, prompt, TOKENS))])
        likeliest = drafter(text[:, :-1]).logits[0, len(prompt) - 1 :].argmax(-1)
        agreed.append((likeliest == text[0, len(prompt) :]).tolist())
    assert tokens_per_step(agreed) > 1.3


async def test_a_continuation_is_as_likely_as_transformers_finds_it() -> None:
    """The request is the one that lm-evaluation-harness makes: `local-completions`, task kind
    loglikelihood.
    """
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    words = reference_texts.TEXT.split()
    texts = [" ".join(words[5 * place : 5 * place + 30]) for place in range(CONTINUATIONS)]
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    async with chatting(Pair(FOLDER, models.SMOLLM2_DRAFT), dtype="float32") as client:
        (model,) = (await client.models.list()).data
        answer = await client.completions.create(
            model=model.id,
            prompt=prompts,
            echo=True,
            logprobs=1,
            max_tokens=1,
            temperature=0,
            seed=1234,
        )
    alone = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    for ids, choice in zip(prompts, answer.choices, strict=True):
        with torch.inference_mode():
            scores = alone(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        context, following = len(ids) // 2, torch.tensor(ids[1:])[:, None]
        own = scores.gather(1, following)[context - 1 :].sum()
        logprobs = choice.logprobs
        told = logprobs.token_logprobs[context:-1]
        assert sum(told) == pytest.approx(float(own), abs=1e-3)
        likeliest = [max(each.values()) for each in logprobs.top_logprobs[context:-1]]
        greedy = (scores.argmax(-1) == following[:, 0])[context - 1 :].tolist()
        assert [one == other for one, other in zip(told, likeliest, strict=True)] == greedy


async def test_as_a_gguf_file_it_answers_as_the_directory_that_was_made_of_it(
    tmp_path: Path,
) -> None:
    """The file is served without any other file beside it, and it is exact."""
    file = tmp_path / FILE
    file.symlink_to(GGUF)
    async with chatting(Pair(FOLDER, models.SMOLLM2_DRAFT)) as client:
        expected = await answers(client)
    async with chatting(Pair(file, file)) as client:
        assert await answers(client) == expected
