"""Check that drafts do not change answers, whatever options a request has. Each request with random
options is sent twice: with drafts by a random method, and without drafts.

All requests use the acceptance rule MATCH, and are greedy or seeded. Text, tokens, finish reason
and log-probabilities of both answers must be identical. The log-probabilities are also compared
with those of a forward pass of transformers.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.systems import ALWAYS, Prompt, load, tandem_up
from tandem.protos.errors import TandemError
from tandem.v1 import orchestrator_pb2 as api

STOPS = ("the", ".", " and", "\n", "ing", ", s", "d h")
METHODS = (
    api.DRAFT_METHOD_TREE,
    api.DRAFT_METHOD_TREE,
    api.DRAFT_METHOD_MEDUSA_LITE,
    api.DRAFT_METHOD_SUFFIX,
)
GRAMMARS: tuple[dict[str, Any], ...] = (
    {"json_object": True},
    {"regex": r"([A-Z][a-z]+ )+"},
    {"choice": api.Choice(texts=["yes", "no", "yes, but only on Sundays"])},
    {"lark": 'start: "[" item ("," item)* "]"\nitem: /[0-9]+/ | start'},
    {"json_schema": '{"type": "object", "properties": {"a": {"enum": ["cat", "dog"]}}}'},
)
TOLERANCE = 1e-4  # largest allowed error of a log-probability


def drawn_request(
    rng: random.Random, prompts: Sequence[Prompt], vocabulary: int
) -> api.GenerateRequest:
    """Return a random request, in which some options have random values."""

    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.35 else None

    prompt = rng.choice(prompts)[: rng.randint(1, 40)]
    reported = maybe(rng.choice([0, 1, 5, 20]))
    tokens = rng.randint(0 if reported is not None else 1, 48)
    temperature = rng.choice([0.0, 0.0, rng.uniform(0.1, 1.5)])
    request = api.GenerateRequest(
        token_ids=api.TokenIds(ids=prompt),
        sampling=api.Sampling(
            temperature=temperature,
            top_p=maybe(rng.uniform(0.05, 1)),
            top_k=maybe(rng.choice([0, 1, 3, 20, 500, 10_000])),
            min_p=maybe(rng.uniform(0, 0.5)),
            repetition_penalty=maybe(rng.uniform(0.7, 2)),
            presence_penalty=maybe(rng.uniform(-1, 2)),
            frequency_penalty=maybe(rng.uniform(-0.5, 2)),
            logit_bias=maybe({rng.randrange(vocabulary): rng.uniform(-9, 9) for _ in range(5)}),
            seed=rng.getrandbits(64),
            **maybe(rng.choice(GRAMMARS)) or {},
        ),
        stopping=api.Stopping(
            max_new_tokens=tokens,
            min_new_tokens=maybe(rng.randint(0, tokens)),
            stop=maybe(rng.sample(STOPS, 2)) or (),
            stop_token_ids=maybe([rng.randrange(vocabulary) for _ in range(20)]) or (),
            ignore_eos=maybe(True),
        ),
        logprobs=maybe(rng.choice([0, 1, 5, 20])),
        prompt_logprobs=reported,
        echo=maybe(True),
        return_token_ids=maybe(True),
    )
    return request


def drawn_speculation(rng: random.Random) -> api.Speculation:
    """Choose a random drafting method and its settings for a request."""
    method = rng.choice(METHODS)
    return api.Speculation(
        num_speculative_tokens=rng.choice([None, 1, 3, 8]),
        branches=rng.choice([None, 1, 2, 4]),
        method=method,
        schedule=api.DraftSchedule.ValueType(rng.randrange(4)),
        confidence_threshold=rng.choice([0.0, 0.0, 0.4]) * (method != api.DRAFT_METHOD_SUFFIX),
    )


def same(one: api.GenerateResponse, other: api.GenerateResponse) -> bool:
    """Return whether two answers are the same except for ids, timing, usage and draft counts."""
    bare = []
    for answer in (one, other):
        copy = api.GenerateResponse()
        copy.CopyFrom(answer)
        for field in ("request_id", "timing", "speculation", "usage"):
            copy.ClearField(field)
        bare.append(copy)
    return bool(bare[0] == bare[1])


async def ask_twice(
    stub: Any, request: api.GenerateRequest, speculation: api.Speculation
) -> tuple[api.GenerateResponse, api.GenerateResponse]:
    """Send a request without drafts and then with drafts, and return both answers."""
    plain, drafted = api.GenerateRequest(), api.GenerateRequest()
    plain.CopyFrom(request)
    plain.speculation.num_speculative_tokens = 0
    drafted.CopyFrom(request)
    drafted.speculation.CopyFrom(speculation)
    return await stub.Generate(plain), await stub.Generate(drafted)


@torch.inference_mode()
def farthest(network: Any, prompt: Sequence[int], answer: api.GenerateResponse) -> float:
    """Return the largest difference between the log-probabilities of an answer and those of one
    forward pass of transformers over the whole text.
    """
    tokens = [*prompt, *answer.token_ids]
    scores = network(torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)
    of_prompt = answer.prompt_logprobs or [None] * (len(prompt) - 1)
    of_answer = answer.logprobs or [None] * len(answer.token_ids)
    far = 0.0
    for row, token, reported in zip(scores[:-1], tokens[1:], (*of_prompt, *of_answer), strict=True):
        if reported is None:
            continue
        count = len(reported.top_ids)
        likeliest = row.topk(count).values
        for mine, theirs in (
            (torch.tensor([reported.logprob]), row[[token]]),
            (torch.tensor(reported.top_logprobs), likeliest),
            (torch.tensor(reported.top_logprobs), row[list(reported.top_ids)]),
        ):
            if len(mine):
                far = max(far, float((mine - theirs).abs().max()))
    return far


async def compare(
    stub: Any, network: Any, prompts: Sequence[Prompt], count: int, seed: int, at_once: int
) -> tuple[list[api.GenerateRequest], float, int, int]:
    """Send `count` random requests, each without and with drafts. Returns the requests whose
    answers differ, the largest error of a log-probability, the number of tokens, and the number of
    accepted draft tokens.
    """
    rng, places = random.Random(seed), asyncio.Semaphore(at_once)
    vocabulary = network.config.vocab_size
    asked = [
        (drawn_request(rng, prompts, vocabulary), drawn_speculation(rng)) for _ in range(count)
    ]

    async def one(request: api.GenerateRequest, speculation: api.Speculation) -> Any:
        async with places:
            return await ask_twice(stub, request, speculation)

    answers = await asyncio.gather(*(one(*each) for each in asked))
    pairs = list(zip(asked, answers, strict=True))
    differing = [request for (request, _), answer in pairs if not same(*answer)]
    scored = [
        (request.token_ids.ids, drafted)
        for (request, _), (_, drafted) in pairs
        if request.HasField("logprobs") or request.HasField("prompt_logprobs")
    ]
    far = await asyncio.to_thread(
        lambda: max(
            (farthest(network, *each) for each in track(scored, "plain passes")), default=0.0
        )
    )
    tokens = sum(len(drafted.token_ids) for _, drafted in answers)
    accepted = sum(drafted.speculation.num_accepted_draft_tokens for _, drafted in answers)
    return differing, far, tokens, accepted


async def measure(target: Path, draft: Path, requests: int, seed: int, at_once: int) -> Any:
    """Start a system, and compare its answers with and without drafts."""
    os.environ["TANDEM__VERIFIER__DTYPE"] = "float32"  # the dtype of the reference network
    prompts, network = tokenised(target, story_count()), load(target)
    async with tandem_up(target, draft, False, *ALWAYS) as stub:
        return await compare(stub, network, prompts, requests, seed, at_once)


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    requests: Annotated[int, typer.Option(help="requests drawn at random", min=1)] = 1000,
    seed: int = 0,
    at_once: Annotated[int, typer.Option(help="pairs of requests in flight", min=1)] = 4,
    file: report.JsonFile = None,
) -> None:
    """Compare answers with and without drafts over all options."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    try:
        measured = asyncio.run(measure(target, draft, requests, seed, at_once))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    differing, far, tokens, accepted = measured
    shown = Table("requests", "tokens", "of them drafted", "answers that differ", box=None)
    shown.add_column("farthest log-probability")
    shown.add_row(*map(str, (requests, tokens, accepted, len(differing))), f"{far:.1e}")
    heading = report.title(target, draft, "all options, with drafts and without")
    row = {"requests": requests, "tokens": tokens, "accepted": accepted}
    row |= {"differing": len(differing), "farthest": far}
    report.publish(heading, shown, [row], file)
    for request in differing:
        print(f"differs: {request}")
    raise SystemExit(bool(differing) or far > TOLERANCE)


if __name__ == "__main__":
    typer.run(main)
