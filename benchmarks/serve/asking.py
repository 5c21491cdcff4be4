"""Send one request to Tandem over gRPC, or to any server with OpenAI's API, and record its latency
and its tokens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tandem.benchmarks.serve.load import Ask
from tandem.benchmarks.serve.prompts import Prompt
from tandem.benchmarks.serve.record import Drafts, Record
from tandem.orchestrator.cli.flags import FrontEnd
from tandem.protos.errors import TandemError, Unusable


@dataclass(frozen=True, slots=True)
class Options:
    """Options that all requests share."""

    tokens: int
    temperature: float
    seed: int
    ignore_eos: bool


@asynccontextmanager
async def tandem(front_end: FrontEnd, options: Options) -> AsyncIterator[tuple[str, Ask]]:
    """Yield the model's name, and a function that sends a prompt over gRPC. Raises TandemError."""
    async with front_end.connect(retry_seconds=0.0) as client:
        status = await client.status()

        async def ask(prompt: Prompt, drafts: bool) -> Record:
            record = Record(time.perf_counter(), prompt.category)
            plain: dict[str, Any] = {} if drafts else {"num_speculative_tokens": 0}
            stream = client.stream(
                prompt.text,
                max_new_tokens=options.tokens,
                temperature=options.temperature,
                seed=options.seed,
                ignore_eos=options.ignore_eos,
                **plain,
            )
            try:
                async with stream:
                    async for _ in stream:
                        record.arrivals.append(time.perf_counter())
            except TandemError as problem:
                record.error = f"{type(problem).__name__}: {problem}"
                return record
            assert stream.response is not None, "a stream without an error ends with a response"
            usage, figures = stream.response.usage, stream.response.speculation
            record.prompt_tokens, record.tokens = usage.prompt_tokens, usage.completion_tokens
            record.drafts = Drafts(
                figures.num_spec_steps,
                figures.num_steps_with_guesses,
                figures.num_draft_tokens,
                figures.num_accepted_draft_tokens,
                tuple(figures.acceptance_histogram),
            )
            return record

        yield status.models[0].name if status.models else "", ask


@asynccontextmanager
async def endpoint(
    url: str, model: str, options: Options, key: str
) -> AsyncIterator[tuple[str, Ask]]:
    """Yield the model's name, and a function that sends a prompt over HTTP. OpenAI's API cannot
    switch drafts off and reports nothing about them. Raises Unusable.
    """
    try:
        import openai
    except ModuleNotFoundError as error:
        raise Unusable("openai is not installed: pip install 'tandem-serving[bench]'") from error
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        try:
            name = model or (await client.models.list()).data[0].id
        except openai.OpenAIError as problem:
            raise Unusable(f"{url}/models: {problem}") from problem
        extra = {"ignore_eos": True} if options.ignore_eos else None

        async def ask(prompt: Prompt, drafts: bool) -> Record:
            record = Record(time.perf_counter(), prompt.category)
            try:
                stream = await client.completions.create(
                    model=name,
                    prompt=prompt.text,
                    max_tokens=options.tokens,
                    temperature=options.temperature,
                    seed=options.seed,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body=extra,
                )
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].text:
                        record.arrivals.append(time.perf_counter())
                    if chunk.usage:
                        record.prompt_tokens = chunk.usage.prompt_tokens
                        record.tokens = chunk.usage.completion_tokens
            except openai.OpenAIError as problem:
                record.error = f"{type(problem).__name__}: {problem}"
            if not record.error and not record.arrivals:
                record.error = "no text came"
            return record

        yield name, ask
