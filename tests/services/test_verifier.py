"""The verifier over real gRPC as streams: texts that go on by themselves to their ends."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from transformers import PreTrainedModel

from tandem.protos.streams import Guess
from tandem.protos.types import DraftShape, SamplingParams
from tests import reference
from tests.conftest import Services
from tests.services.caller import (
    BEGIN,
    DRAWN,
    LONG,
    PROMPT,
    UNTIL,
    calling,
    decoding,
    reported,
    straight,
)

GREEDY = SamplingParams()


@pytest.fixture(autouse=True)
async def _nothing_left(nothing_left: None) -> None:
    """Every caller here closes what it opened."""


@pytest.fixture(scope="module")
def text(target: PreTrainedModel) -> tuple[int, ...]:
    """What the target alone says behind the prompt, drawn."""
    return tuple(reference.sample(target, list(PROMPT), LONG - BEGIN, DRAWN, -1))


async def test_a_verifier_decodes_by_itself_to_the_end(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding())
        facts = await stream.facts(UNTIL)
        assert reported(facts) == text[: UNTIL - BEGIN]
        assert [bool(fact.epoch) for fact in facts] == [True] + [False] * (len(facts) - 1)
        assert await stream.silent()


async def test_a_stop_token_ends_the_decoding(services: Services, text: tuple[int, ...]) -> None:
    stop = text[20]
    said = text[: text.index(stop) + 1]
    async with calling(services.verifier) as caller:
        opening = replace(decoding(LONG), stop_token_ids=frozenset({stop}))
        stream = await caller.open(opening)
        assert reported(await stream.facts(BEGIN + len(said))) == said
        assert await stream.silent()


async def test_true_guesses_are_accepted_and_no_guess_changes_the_text(
    services: Services, text: tuple[int, ...]
) -> None:
    """The text itself as a guess in parts, amid nonsense, repeated and late."""
    rng, size = random.Random(3), 60
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding(LONG))
        for start in range(0, len(text), size):
            part = text[start : start + size]
            true = straight(BEGIN, part, first=start + 1)
            stray = straight(rng.randrange(LONG), [rng.randrange(4096)] * 9, first=LONG + start)
            for guess in (stray, replace(true, parents=tuple(range(start, start + len(part))))):
                await stream.say(guess)
        facts = await stream.facts(BEGIN + 1)
        for guess in (straight(BEGIN, text[:9]), straight(BEGIN, [9, 9], source=8)):
            await stream.say(guess)
        facts += await stream.facts(LONG)
    assert reported(facts) == text
    assert sum(fact.accepted for fact in facts) > 100
    assert sum(fact.late for fact in facts) > 0


async def test_in_lockstep_a_step_waits_for_the_guess_behind_its_length_and_takes_all_of_it(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(replace(decoding(), lockstep=True))
        await stream.say(straight(BEGIN + 3, text[3:6]))
        assert await stream.silent(), "that is for later"
        await stream.say(straight(BEGIN, (*text[:3], 9, 10)))
        (fact,) = await stream.facts(BEGIN + 4)
        assert (fact.tokens, fact.drafted, fact.accepted) == (text[:4], 5, 3)
        await stream.say(straight(BEGIN + 3, text[3:6]))
        assert await stream.silent(), "and that was for earlier"
        await stream.say(Guess(BEGIN + 4))
        assert (await stream.take()).tokens == text[4:5]


async def test_a_verifier_that_looks_up_needs_no_guesses(
    services: Services, target: PreTrainedModel
) -> None:
    prompt = PROMPT * 6
    expected = reference.sample(target, list(prompt), 200, GREEDY, -1)
    async with calling(services.verifier) as caller:
        opening = decoding(len(prompt) + 200, GREEDY, prompt)
        stream = await caller.open(replace(opening, lookup=DraftShape.chain(16)))
        facts = await stream.facts(opening.until)
    assert reported(facts, len(prompt)) == tuple(expected)
    assert sum(fact.accepted for fact in facts) > 0


async def test_a_paused_stream_in_lockstep_takes_no_step_although_it_has_a_guess(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(replace(decoding(), lockstep=True))
        await stream.pause(True)
        await stream.say(Guess(BEGIN))
        assert await stream.silent()
        await stream.pause(False)
        assert (await stream.take()).tokens == text[:1]


async def test_a_paused_stream_says_nothing_until_it_goes_on(
    services: Services, text: tuple[int, ...]
) -> None:
    async with calling(services.verifier) as caller:
        stream = await caller.open(decoding(LONG))
        facts = [await stream.take()]
        await stream.pause(True)
        await asyncio.sleep(0.3)
        while not stream.queue.empty():
            facts.append(await stream.take())
        assert len(reported(facts)) < len(text), "the text is not at its end"
        assert await stream.silent()
        await stream.pause(False)
        assert reported(facts + await stream.facts(LONG)) == text
