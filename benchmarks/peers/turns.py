"""Send the same requests to several servers in turn, through the client API. Measure when tokens
arrive, at what rate, and whether all servers return the same tokens.

Callers of this module choose the order in which the servers take turns, and configure the network
links of the servers.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median
from typing import Any

from grpc import aio

from tandem.v1 import orchestrator_pb2 as api

MAX_TURN_SECONDS = 20.0  # seconds after which a turn ends even if no answer has ended
POLL_SECONDS = 0.01  # seconds between checks whether a turn is over
# a token rate is computed only if there are at least this many tokens or seconds
MIN_RATE_TOKENS, MIN_RATE_SECONDS = 16, 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """A request: its prompt, its sampling parameters, and its maximum number of new tokens."""

    prompt: str
    seed: int
    temperature: float
    tokens: int  # maximum number of new tokens

    @classmethod
    def drawn(cls, prompt: str, temperature: float, tokens: int, rng: random.Random) -> Job:
        """Create a request with a random seed and a random length. The length is between 50 % and
        150 % of `tokens`. Without this variation, concurrent requests without drafts would all end
        at the same time.
        """
        length = rng.randint(tokens // 2, tokens + tokens // 2)
        return cls(prompt, rng.getrandbits(32), temperature, length)


@dataclass(slots=True)
class Answer:
    """The part of an answer that has arrived so far. `arrivals` has the arrival time of each chunk,
    and the number of tokens that had arrived by then.
    """

    job: Job
    began: float
    tokens: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    rounds: int = 0  # number of rounds, which the server reports when the answer ends
    failed: bool = False
    ended: float | None = None

    @property
    def first(self) -> float | None:
        """The seconds to the first token, or None if no token has arrived."""
        return self.arrivals[0][0] - self.began if self.arrivals else None

    def paced(self, skip: int, end: float) -> tuple[int, float]:
        """Return how many tokens arrived after the first `skip` tokens, and in how many seconds. If
        the answer has not ended, the time is measured until `end`, the end of the turn.
        """
        for when, count in [(self.began, 0), *self.arrivals]:
            if count >= skip:
                return len(self.tokens) - count, (self.ended or end) - when
        return 0, 0.0

    def differs(self, other: Answer) -> bool:
        """Return whether two answers differ. Tokens are compared at the positions that exist in
        both answers. The lengths are compared only if both answers are complete.
        """
        short = min(len(self.tokens), len(other.tokens))
        whole = all(each.ended and not each.failed for each in (self, other))
        return self.tokens[:short] != other.tokens[:short] or (
            whole and len(self.tokens) != len(other.tokens)
        )


@dataclass(frozen=True, slots=True)
class Turn:
    """The measurements of one server's turn. `at_once` is the number of concurrent requests, and
    `end` is the time at which the turn ended. `spent` maps `up` to the bytes sent to the drafter,
    and `down` to the bytes received from the drafter. `spent` also maps `processor` to the CPU
    seconds of all threads that do not run models.
    """

    answers: Sequence[Answer]
    at_once: int
    end: float
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """The number of tokens of all answers."""
        return sum(len(answer.tokens) for answer in self.answers)

    def rate(self, skip: int = 0) -> float | None:
        """Return the tokens per second of all requests together, without the first `skip` tokens of
        each answer. Return None if fewer than MIN_RATE_TOKENS tokens and less than MIN_RATE_SECONDS
        seconds were measured.
        """
        paced = [answer.paced(skip, self.end) for answer in self.answers]
        tokens, seconds = sum(each for each, _ in paced), sum(each for _, each in paced)
        if tokens < MIN_RATE_TOKENS and seconds < MIN_RATE_SECONDS:
            return None
        return self.at_once * tokens / seconds


async def take(
    stub: Any, levels: int | None, jobs: Sequence[Job], at_once: int, seconds: float
) -> Turn:
    """Send requests to one server, `at_once` at a time, and return the measurements of this turn.

    The turn ends when no job is left to start and fewer than `at_once` requests are running. The
    turn also ends when `seconds` have passed and at least one request has ended. Requests that
    still run are then cancelled.
    """
    answers, waiting, began = list[Answer](), iter(jobs), time.perf_counter()

    async def place() -> None:
        for job in waiting:
            answers.append(answer := Answer(job, time.perf_counter()))
            await ask(stub, levels, answer)

    places = [asyncio.create_task(place()) for _ in range(at_once)]
    while not any(each.done() for each in places):
        limit = seconds if any(answer.ended for answer in answers) else MAX_TURN_SECONDS
        if time.perf_counter() - began > max(seconds, limit):
            break
        await asyncio.sleep(POLL_SECONDS)
    turn = Turn(answers, at_once, time.perf_counter())
    ended = [each for each in places if each.done()]
    for each in places:
        each.cancel()
    await asyncio.gather(*places, return_exceptions=True)
    await asyncio.gather(*ended)  # raises the error of an ended task, if there is one
    return turn


async def ask(stub: Any, levels: int | None, answer: Answer) -> None:
    """Send a request and record its streamed answer. The server chooses the number of draft levels
    unless `levels` is given. If `levels` is 0, the server decodes without drafts.
    """
    job = answer.job
    request = api.GenerateRequest(
        text=job.prompt,
        sampling=api.Sampling(temperature=job.temperature, seed=job.seed),
        stopping=api.Stopping(max_new_tokens=job.tokens),
        speculation=api.Speculation(num_speculative_tokens=levels),
    )
    try:
        async for event in stub.StreamGenerate(api.StreamGenerateRequest(request=request)):
            if event.HasField("chunk"):
                answer.tokens += event.chunk.token_ids
                answer.arrivals.append((time.perf_counter(), len(answer.tokens)))
            else:
                answer.rounds = event.complete.speculation.num_spec_steps
    except aio.AioRpcError:
        answer.failed = True
    answer.ended = time.perf_counter()


Turns = Sequence[Mapping[str, Turn]]  # each turn's measurements by server name


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are not None, or None if all are None."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def ratio(turns: Turns, name: str, other: str, skip: int = 0) -> float | None:
    """Return the speedup of the server `name` over the server `other`, which is the median over all
    turns of the ratio of their token rates. The first `skip` tokens of each answer are not counted.
    Return None if there is no turn in which both servers have a token rate.
    """
    if not {name, other} <= turns[0].keys():
        return None
    rates = [(turn[name].rate(skip), turn[other].rate(skip)) for turn in turns]
    return middle([one / two for one, two in rates if one is not None and two])


def figures(turns: Sequence[Turn], skip: int) -> dict[str, Any]:
    """Return the metrics of one server: its token rates, its time to the first token, its tokens
    per round, and its costs per token.
    """
    answers = [answer for turn in turns for answer in turn.answers]
    whole = [answer for answer in answers if answer.rounds]
    tokens, rounds = sum(turn.tokens for turn in turns), sum(answer.rounds for answer in whole)
    return {
        "rate": middle([turn.rate() for turn in turns]),
        "rate_after": middle([turn.rate(skip) for turn in turns]),
        "rates": [turn.rate() for turn in turns],
        "tokens": tokens,
        "first_token": middle([answer.first for answer in answers]),
        "per_round": sum(len(answer.tokens) for answer in whole) / rounds if rounds else None,
        **{
            each: sum(turn.spent[each] for turn in turns) / tokens if tokens else None
            for each in ("up", "down", "processor")
        },
        "failed": sum(answer.failed for answer in answers),
    }


def texts(turns: Turns) -> tuple[int, int]:
    """Return the number of requests that more than one server answered, and for how many of them
    the answers differ.
    """
    compared = differing = 0
    for turn in turns:
        found: dict[Job, list[Answer]] = {}
        for answer in (answer for each in turn.values() for answer in each.answers):
            found.setdefault(answer.job, []).append(answer)
        for answers in (each for each in found.values() if len(each) > 1):
            compared += 1
            differing += any(one.differs(two) for one, two in combinations(answers, 2))
    return compared, differing
