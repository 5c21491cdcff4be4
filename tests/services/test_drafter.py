"""The drafter over real gRPC: openings and facts go in, guesses that help come out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from transformers import PreTrainedModel

from tandem.benchmarks.peers.prompts import tokenised
from tandem.models import DRAFT, EMBEDDED, TARGET
from tandem.protos.types import Context, DraftShape, Method, Rule, SamplingParams
from tandem.protos.wire.drafting import draft_of
from tests import reference
from tests.laws.receiver import Receiver
from tests.services.guessing import GREEDY, SHAPE, Caller, Tokens, served


@pytest.fixture(scope="module")
async def stub() -> AsyncIterator[Any]:
    """The embedded drafter."""
    async with served(model=DRAFT) as stub:
        yield stub


@pytest.fixture
async def caller(stub: Any) -> AsyncIterator[Caller]:
    """A call, all of whose sessions are closed at the end."""
    caller = Caller(stub)
    yield caller
    caller.close(*(caller.name(number) for number in range(16)))
    await caller.end()


@pytest.fixture(scope="module")
def prompts() -> list[Tokens]:
    """Beginnings of stories."""
    return tokenised(TARGET, 8)


async def relayed(caller: Caller, stream: int, prompt: Tokens, text: Tokens, step: int) -> float:
    """Tell the text in facts of `step` tokens, each once something is known behind the one before;
    the share of tokens that were guessed in time.
    """
    receiver, taken, hits = Receiver(prompt), 0, 0

    def guessed(levels: int = 1) -> bool:
        nonlocal taken
        for guess in caller.guesses.get(stream, [])[taken:]:
            receiver.take(guess)
            taken += 1
        return max(map(len, receiver.ahead()), default=0) >= levels

    for place in range(0, len(text), step):
        await caller.until(guessed)
        with suppress(TimeoutError):  # there may be no more levels before the end
            async with asyncio.timeout(0.5):
                await caller.until(partial(guessed, step))
        await asyncio.sleep(0.02)  # a step of the verifier
        guessed()
        tokens = text[place : place + step]
        ahead = receiver.ahead()
        hits += sum(tokens[:count] in ahead for count in range(1, len(tokens) + 1))
        caller.tell(stream, len(receiver.text), tokens)
        receiver.advance(tokens)
    return hits / len(text)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(0.7, seed=11)])
async def test_what_the_target_says_next_is_mostly_guessed_already(
    sampling: SamplingParams, caller: Caller, target: PreTrainedModel, prompts: list[Tokens]
) -> None:
    """Several sessions of one call at once."""
    texts = []
    for prompt in prompts[:4]:
        drawn = reference.sample(target, list(prompt), 40, sampling, end=0)
        texts.append(tuple(drawn))
    for stream, prompt in enumerate(prompts[:4]):
        context = Context(caller.name(stream), 1, 0, prompt)
        caller.open(stream, context, sampling=replace(sampling, prompt_length=len(prompt)))
    shares = await asyncio.gather(
        *(
            relayed(caller, stream, prompt, text, step=1 + stream % 2)
            for stream, (prompt, text) in enumerate(zip(prompts[:4], texts, strict=True))
        )
    )
    assert not caller.failures
    assert sum(shares) / len(shares) > 0.7
    assert max(len(guess.tokens) for said in caller.guesses.values() for guess in said) <= 32


async def test_in_lockstep_every_fact_is_answered_with_one_whole_guess(
    caller: Caller, target: PreTrainedModel, prompts: list[Tokens]
) -> None:
    prompt = prompts[0]
    for stream, (rule, shape) in enumerate(
        [
            (Rule.MATCH, SHAPE),
            (Rule.REJECT, DraftShape(4, 2, 8)),
            (Rule.TOP1, DraftShape.chain(5)),
            (Rule.MATCH, DraftShape(4, 3, 12, Method.MEDUSA_LITE)),
        ]
    ):
        sampling = SamplingParams(0.7, seed=5, rule=rule)
        text = prompt + tuple(reference.sample(target, list(prompt), 24, sampling, end=0))
        context = Context(caller.name(stream), 1, 0, prompt)
        caller.open(stream, context, sampling=sampling, shape=shape, lockstep=True)
        length, drafted = len(prompt), 0
        for count in range(1, 9):
            await caller.until(lambda s=stream, c=count: len(caller.guesses.get(s, ())) == c)
            guess = caller.guesses[stream][-1]
            draft = draft_of(guess)
            assert guess.behind == length and guess.first == drafted + 1
            assert 0 < len(draft) <= shape.nodes
            assert bool(draft.distributions) == (rule is Rule.REJECT)
            drafted += len(draft)
            caller.tell(stream, length, text[length : length + 2])
            length += 2
    assert not caller.failures


async def test_medusa_lite_goes_on_by_itself(caller: Caller, prompts: list[Tokens]) -> None:
    shape = DraftShape(4, 3, 12, Method.MEDUSA_LITE)
    caller.open(1, Context(caller.name(1), 1, 0, prompts[1]), shape=shape)
    await caller.until(lambda: 1 in caller.guesses)
    caller.tell(1, len(prompts[1]), (5,))
    caller.tell(1, len(prompts[1]) + 1, (6, 7))
    await caller.until(lambda: caller.guesses[1][-1].behind == len(prompts[1]) + 3)
    guess = caller.guesses[1][-1]
    assert len(guess.tokens) == 12 and guess.parents.count(0) == 3
    assert min(guess.scores) < 0


async def test_a_single_draft_builds_on_what_was_cached(
    caller: Caller, prompts: list[Tokens]
) -> None:
    prompt, chain = prompts[2], DraftShape.chain(4)
    first = await caller.once(1, Context(caller.name(1), 1, 0, prompt), shape=chain)
    assert (first.behind, len(first.tokens), first.cached_len) == (
        len(prompt),
        4,
        len(prompt) + 3,
    )
    context = Context(caller.name(1), 2, first.cached_len, (first.tokens[3], 9), first.epoch)
    second = await caller.once(2, context, shape=chain)
    assert second.behind == len(prompt) + 5 and second.epoch == first.epoch
    whole = await caller.once(
        3, Context(caller.name(3), 1, 0, (*prompt, *first.tokens, 9)), shape=chain
    )
    assert second.tokens == whole.tokens
    openings = ((3, 400, first.epoch), (4, 3, first.epoch + 1), (2, 0, 0))
    for stream, (turn, base, epoch) in enumerate(openings, 4):
        caller.open(stream, Context(caller.name(1), turn, base, (5,), epoch), once=True)
        await caller.until(lambda s=stream: s in caller.failures)
    assert caller.failures == {4: "SESSION_MISS", 5: "SESSION_MISS", 6: "STALE_TURN"}


async def test_nonsense_fails_its_own_stream_alone(caller: Caller, prompts: list[Tokens]) -> None:
    prompt = prompts[0]
    for stream in (1, 2, 3):
        caller.open(stream, Context(caller.name(stream), 1, 0, prompt))
    caller.open(4, Context(caller.name(4), 1, 0, (5, 1 << 31)))
    caller.open(5, Context(b"short", 1, 0, prompt))
    await caller.until(lambda: caller.guesses.keys() == {1, 2, 3} and len(caller.failures) == 2)
    assert caller.failures == {4: "INVALID_REQUEST", 5: "INVALID_REQUEST"}
    caller.tell(1, len(prompt), (1 << 31,))
    caller.tell(1, len(prompt) + 1, (5,))
    caller.tell(2, len(prompt) + 7, (5,))
    caller.tell(3, len(prompt), ())
    caller.tell(99, 0, (5,))
    conditions = {"price": math.nan, "token_seconds": -1.0, "delay": math.inf}
    caller.close(b"nobody", b"")
    caller.say(conditions=conditions)
    caller.tell(3, len(prompt), (5,))
    await caller.until(lambda: len(caller.failures) == 4)
    assert {caller.failures[stream] for stream in (1, 2)} == {"SESSION_MISS"}
    await caller.until(lambda: caller.guesses[3][-1].behind == len(prompt) + 1)


async def test_a_newer_opening_ends_the_older(caller: Caller, prompts: list[Tokens]) -> None:
    caller.open(1, Context(caller.name(1), 1, 0, prompts[0]))
    await caller.until(lambda: 1 in caller.guesses)
    text = (*prompts[0], 5, 6)
    caller.open(2, Context(caller.name(1), 2, 0, text))
    await caller.until(lambda: 2 in caller.guesses)
    count = len(caller.guesses[1])
    caller.tell(1, len(prompts[0]), (5,))
    caller.tell(2, len(text), (7,))
    await caller.until(lambda: caller.guesses[2][-1].behind == len(text) + 1)
    assert len(caller.guesses[1]) == count and {g.source for g in caller.guesses[2]} == {2}
    assert caller.failures == {1: "STALE_TURN"}


async def test_the_senders_clock_comes_back_and_a_silent_side_says_something(
    caller: Caller,
) -> None:
    caller.say(sent=12.5)
    await caller.until(lambda: caller.sent.count(12.5) >= 2)


async def test_whoever_hangs_up_is_guessed_for_no_more(stub: Any, prompts: list[Tokens]) -> None:
    gone, other = Caller(stub), Caller(stub)
    gone.open(1, Context(gone.name(1), 1, 0, prompts[0]))
    await gone.until(lambda: 1 in gone.guesses)
    await gone.end()
    guess = await other.once(1, Context(gone.name(1), 2, 0, prompts[0]), shape=DraftShape.chain(3))
    assert len(guess.tokens) == 3
    other.close(gone.name(1))
    await other.end()


async def test_with_a_tokenizer_of_its_own_it_does_the_same(
    target: PreTrainedModel, prompts: list[Tokens]
) -> None:
    async with served(model=EMBEDDED.parent / "foreign", speaks=TARGET) as stub:
        caller, prompt = Caller(stub), prompts[0]
        text = tuple(reference.generate(target, list(prompt), 40))
        caller.open(1, Context(caller.name(1), 1, 0, prompt), shape=DraftShape.chain(6))
        assert await relayed(caller, 1, prompt, text, step=1) > 0.4
        guess = await caller.once(
            2, Context(caller.name(2), 1, 0, prompt), shape=DraftShape.chain(6)
        )
        assert guess.cached_len == len(prompt) and guess.epoch
        caller.close(caller.name(1), caller.name(2))
        await caller.end()
