"""Measure what grammars cost and gain: the time to compute token masks and to compile schemas, and
the tokens per step of answers that follow a schema. Check that all answers are valid, and that they
are the same with every drafting method.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from jsonschema import validate
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.checkout import save_untrained
from tandem.benchmarks.peers.systems import ALWAYS, tandem_up
from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.protos.errors import TandemError
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.matching import GrammarCompiler
from tandem.protos.tokenizer import tokenizer_of
from tandem.v1 import orchestrator_pb2 as api

WITHOUT_DRAFTER = {  # drafting methods that need no drafter
    "no drafts": api.Speculation(num_speculative_tokens=0),
    "suffix": api.Speculation(method=api.DRAFT_METHOD_SUFFIX),
}
MAX_NEW_TOKENS = 400  # maximum tokens per answer
PROMPTS = ("Once upon a time", "The little girl said", "A list of what the dog found:")


def drawn_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Create a random JSON schema of an object. Answers that follow this schema are short."""
    names = rng.sample(["name", "age", "colour", "friends", "first pet", "is_tall"], 3)
    parts: list[dict[str, Any]] = [
        {"type": "string", "maxLength": rng.randint(1, 12)},
        {"type": "integer", "minimum": 0, "maximum": rng.randint(1, 5000)},
        {"enum": rng.sample(["red", "green", "blue", "light brown"], 2)},
        {"type": ["boolean", "null"]},
        {"type": "array", "items": {"enum": ["a cat", "a dog"]}, "maxItems": rng.randint(1, 3)},
        {"type": "string", "pattern": r"^[A-Z][a-z]{2,6}$"},
    ]
    if depth:
        parts += [drawn_schema(rng, depth - 1)] * 2
    properties = {name: rng.choice(parts) for name in names}
    required = [name for name in names if rng.random() < 0.8]
    closed = {"required": required, "additionalProperties": False}
    return {"type": "object", "properties": properties} | closed


def large_schema(size: int) -> dict[str, Any]:
    """Create a JSON schema of about `size` bytes."""
    rng, properties = random.Random(0), dict[str, Any]()
    while len(json.dumps(properties)) < size:
        properties[f"part {len(properties)}"] = drawn_schema(rng)
    return {"type": "object", "properties": properties, "required": [*properties]}


def grammar_of(schema: dict[str, Any]) -> Grammar:
    """Return a JSON schema as a grammar."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def mask_seconds(compiler: GrammarCompiler, vocabulary: int, seed: int) -> Iterator[float]:
    """Generate an answer by drawing each token uniformly from those that the grammar allows. Yields
    for each token the seconds to compute the token mask and to commit the token.
    """
    rng = random.Random(seed)
    matcher = GrammarMatcher(compiler, grammar_of(drawn_schema(rng)), ())
    for _ in range(100):
        began = time.perf_counter()
        allowed = matcher.allowed((), vocabulary)
        seconds = time.perf_counter() - began
        assert allowed is not None
        token = rng.choice(allowed.nonzero()[0].tolist())
        if token in compiler.ends:
            return
        began = time.perf_counter()
        matcher.extend([token])
        yield seconds + time.perf_counter() - began


def alone(model: Path, ends: Sequence[int]) -> tuple[int, list[float], float]:
    """Measure grammars with a model's tokenizer, without running the model. Returns the vocabulary
    size, the seconds to compute each token mask, and the seconds to compile a schema of 10 kB.
    """
    tokenizer = tokenizer_of(model)
    compiler = GrammarCompiler(lambda: tokenizer, ends)
    vocabulary = tokenizer.get_vocab_size()
    compiler.fresh(Grammar(GrammarKind.JSON_OBJECT))  # load the tokenizer before measuring
    grammar = grammar_of(large_schema(10_000))
    began = time.perf_counter()
    compiler.fresh(grammar)
    compiling = time.perf_counter() - began
    masks = [each for seed in range(20) for each in mask_seconds(compiler, vocabulary, seed)]
    return vocabulary, masks, compiling


async def ask(
    stub: Any, prompt: str, schema: dict[str, Any], temperature: float, way: api.Speculation
) -> api.GenerateResponse:
    """Request one answer that follows a schema."""
    sampling = api.Sampling(temperature=temperature, seed=11, json_schema=json.dumps(schema))
    stopping = api.Stopping(max_new_tokens=MAX_NEW_TOKENS)
    request = api.GenerateRequest(
        text=prompt, sampling=sampling, stopping=stopping, speculation=way
    )
    response: api.GenerateResponse = await stub.Generate(request)
    return response


async def compare(
    target: Path, drafters: Sequence[Path], schemas: int, at_once: int
) -> list[dict[str, Any]]:
    """Return one row of results for each drafting method: the tokens per step, how many answers
    differ from those without drafts, and how many answers are invalid.
    """
    rng, places = random.Random(0), asyncio.Semaphore(at_once)
    asked = [
        (rng.choice(PROMPTS), drawn_schema(rng), float(temperature))
        for _ in range(schemas)
        for temperature in (0, 1)
    ]
    answers: dict[str, list[api.GenerateResponse]] = {}
    # no drafting method may copy from the answers of an earlier method
    os.environ["TANDEM__VERIFIER__RECENT_TOKENS"] = "0"
    for drafter in drafters:
        async with tandem_up(target, drafter, False, *ALWAYS) as stub:

            async def one(each: tuple[str, dict[str, Any], float], way: api.Speculation) -> Any:
                async with places:
                    return await ask(stub, *each, way)

            for name, way in ({} if answers else WITHOUT_DRAFTER).items():
                answers[name] = await asyncio.gather(*(one(each, way) for each in asked))
            trees = (one(each, api.Speculation()) for each in asked)
            answers[f"trees, {drafter.name}"] = await asyncio.gather(*trees)
    schemas_asked = [schema for _, schema, _ in asked]
    return [
        row(name, given, answers["no drafts"], schemas_asked) for name, given in answers.items()
    ]


def row(
    name: str,
    given: Sequence[api.GenerateResponse],
    plain: Sequence[api.GenerateResponse],
    schemas: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Return the results of one drafting method."""
    tokens = sum(len(each.token_ids) for each in given)
    steps = sum(each.speculation.num_spec_steps for each in given)
    both, valid = zip(given, plain, strict=True), map(is_valid, given, schemas)
    return {
        "drafts": name,
        "answers": len(given),
        "tokens": tokens,
        "steps": steps,
        "tokens_per_step": tokens / steps,
        "differing": sum(one.token_ids != other.token_ids for one, other in both),
        "invalid": len(given) - sum(valid),
    }


def is_valid(answer: api.GenerateResponse, schema: dict[str, Any]) -> bool:
    """Return whether an answer is complete JSON and follows its schema."""
    try:
        validate(json.loads(answer.text), schema)
    except Exception:
        return False
    return True


def main(
    target: Annotated[
        Path, typer.Option(help="model directory of the target", exists=True)
    ] = models.TARGET,
    draft: Annotated[
        list[Path],
        typer.Option(help="model directory of a drafter; may be repeated", exists=True),
    ] = [models.DRAFT, models.FOREIGN],  # noqa: B006
    schemas: Annotated[int, typer.Option(help="schemas drawn at random", min=1)] = 500,
    at_once: Annotated[int, typer.Option(help="requests in flight", min=1)] = 4,
    tokenizer: Annotated[
        list[Path] | None,
        typer.Option(help="also measure token masks with this directory's tokenizer"),
    ] = None,
    file: report.JsonFile = None,
) -> None:
    """Measure token masks and compilation, then compare answers with and without drafts. The
    comparison also includes an untrained draft model, which has the first draft model's
    architecture and random weights.
    """
    logging.disable_progress_bar()
    time_alone((target, *(tokenizer or ())))
    with TemporaryDirectory() as folder:
        drafters = [*draft, save_untrained(draft[0], Path(folder, "untrained"))]
        try:
            rows = asyncio.run(compare(target, drafters, schemas, at_once))
        except TandemError as problem:
            raise SystemExit(f"error: {problem}") from None
    shown = Table("drafts", "answers", "tokens", "steps", "tokens per step", box=None)
    for each in rows:
        counts = (str(each[name]) for name in ("drafts", "answers", "tokens", "steps"))
        shown.add_row(*counts, f"{each['tokens_per_step']:.2f}")
    differing, invalid = (sum(each[name] for each in rows) for name in ("differing", "invalid"))
    heading = report.title(target, draft[0], "answers by random schemas, temperatures 0 and 1")
    report.publish(heading, shown, rows, file)
    print(f"answers that differ: {differing}; that are not valid: {invalid}")
    raise SystemExit(bool(differing or invalid))


def time_alone(folders: Sequence[Path]) -> None:
    """Print how long token masks and compilation take with the tokenizers of some models, without
    running the models.
    """
    timed = Table("tokens", "a mask, ms", "slowest tenth, ms", "10 kB compiled, ms", box=None)
    for model in folders:
        vocabulary, masks, compiling = alone(model, (0,))
        slow = sorted(masks)[len(masks) * 9 // 10]
        figures = (median(masks), slow, compiling)
        timed.add_row(str(vocabulary), *(f"{1000 * each:.2f}" for each in figures))
    report.publish("grammars alone", timed, [], None)


if __name__ == "__main__":
    typer.run(main)
