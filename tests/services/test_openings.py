"""Openings of a verifier over real gRPC: which are served, and what ends them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedModel

from tandem.engine import streams
from tandem.protos.errors import Busy, InvalidRequest, SessionMiss, StaleTurn
from tandem.protos.streams import Guess
from tandem.v1.common_pb2 import Guess as Bent
from tests import reference
from tests.conftest import Pair, Services, serve_models
from tests.services.caller import (
    BEGIN,
    DRAWN,
    LONG,
    PROMPT,
    UNTIL,
    again,
    calling,
    decoding,
    reported,
)


@pytest.fixture(autouse=True)
async def _nothing_left(nothing_left: None) -> None:
    """Every caller here closes what it opened."""


@pytest.fixture(scope="module")
def text(target: PreTrainedModel) -> tuple[int, ...]:
    """What the target alone says behind the prompt."""
    return tuple(reference.sample(target, list(PROMPT), LONG - BEGIN, DRAWN, -1))


async def test_a_newer_opening_ends_the_older_decoding_whoever_asks(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier) as one, calling(services.verifier) as other:
        older = await one.open(opening)
        known = reported([await older.take()])
        newer = await other.open(again(opening, 2, PROMPT + known))
        facts = [await newer.take()]
        assert await older.silent(0.3), "it is over, and that is no failure"
        assert facts[0].reused >= BEGIN
        facts += await newer.facts(LONG)
        assert known + reported(facts, BEGIN + len(known)) == text


async def test_an_opening_that_is_not_newer_is_refused_and_harms_nobody(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = replace(again(decoding(), 3), lockstep=True)
    async with calling(services.verifier) as caller:
        stream = await caller.open(opening)
        for turn in (3, 2):
            with pytest.raises(StaleTurn):
                await (await caller.open(again(opening, turn))).take()
        await stream.say(Guess(BEGIN))
        assert (await stream.take()).tokens == text[:1]


async def test_openings_fail_one_by_one(services: Services, text: tuple[int, ...]) -> None:
    """In one message, with what is wrong; the others go on."""
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (SessionMiss, {"base": 10}),
        (SessionMiss, {"epoch": 77}),
        (InvalidRequest, {"session_id": b"short"}),
        (InvalidRequest, {"tokens": ()}),
        (InvalidRequest, {"tokens": (5000,)}),
        (InvalidRequest, {"tokens": PROMPT * UNTIL}),
    ]
    openings = [decoding() for _ in range(len(wrong) + 1)]
    for place, (_, fields) in enumerate(wrong):
        context = replace(openings[place].context, **fields)
        openings[place] = replace(openings[place], context=context)
    async with calling(services.verifier) as caller:
        *failing, stream = await caller.open(*openings)
        for (error, _), each in zip(wrong, failing, strict=True):
            with pytest.raises(error):
                await each.take()
        assert reported(await stream.facts(UNTIL)) == text[: UNTIL - BEGIN]


async def test_a_text_may_end_one_token_after_the_context_and_a_longer_one_is_refused(
    services: Services,
) -> None:
    """As the front end refuses it: a caller may come without."""
    context = 512
    async with calling(services.verifier) as caller:
        for until in (context + 2, 2**32 - 1):
            with pytest.raises(InvalidRequest, match=f"until is {until}, above {context + 1}"):
                await (await caller.open(decoding(until))).take()
        stream = await caller.open(decoding(context + 1, tokens=(5,) * (context - 2)))
        assert len(reported(await stream.facts(context + 1), context - 2)) == 3


async def test_the_only_guess_that_was_asked_for_must_be_a_tree(services: Services) -> None:
    """Others are taken for none."""
    async with calling(services.verifier) as caller:
        openings = [replace(decoding(), lockstep=True, once=once) for once in (True, False)]
        asked, going = await caller.open(*openings)
        for stream in (asked, going):
            bent = {"tokens": [1, 2], "parents": [0, 9]}  # behind a node before the first
            await caller.send(guesses=[Bent(stream=stream.number, behind=BEGIN, **bent)])
        with pytest.raises(InvalidRequest, match=r"draft\.parents"):
            await asked.take()
        assert (await going.take()).drafted == 0


async def test_closing_ends_a_decoding_and_forgets_its_session(services: Services) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier) as caller:
        stream = await caller.open(opening)
        await stream.take()
        await caller.close(opening)
        await services.assert_no_session_is_left()
        assert await stream.silent()
        assert (await (await caller.open(opening)).take()).reused == 0


async def test_a_lost_callers_decoding_ends_and_another_one_goes_on_with_it(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier, lost=True) as caller:
        first = await (await caller.open(opening)).facts(BEGIN + 20)
    known = reported(first)
    await asyncio.sleep(0.3)
    assert (await services.verifier_client.describe(5)).sessions == 1
    async with calling(services.verifier) as caller:
        stream = await caller.open(again(opening, 2, PROMPT + known))
        facts = await stream.facts(LONG)
        assert facts[0].reused >= BEGIN + 19, "what it holds is not computed anew"
        assert known + reported(facts, BEGIN + len(known)) == text


async def test_a_lost_worker_cannot_close_its_successors_session(
    services: Services, text: tuple[int, ...]
) -> None:
    """Not while the successor decodes, and not when its decoding is done."""
    opening = decoding(LONG)
    async with calling(services.verifier) as lost, calling(services.verifier) as successor:
        await (await lost.open(opening)).take()
        stream = await successor.open(again(opening, 2))
        facts = [await stream.take()]
        await lost.close(opening)
        facts += await stream.facts(LONG)
        assert reported(facts) == text
        await lost.close(opening)
        longer = PROMPT + text[:-1]
        third = await successor.open(again(opening, 3, longer))
        assert (await third.take()).reused >= len(longer) - 1


async def test_a_silent_caller_is_gone_and_one_that_beats_is_answered(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 1.0)
    opening = replace(decoding(), lockstep=True)
    async with (
        calling(services.verifier, beating=False) as mute,
        calling(services.verifier) as beating,
    ):
        await mute.open(opening)
        await asyncio.wait_for(mute.ended.wait(), 5)
        await asyncio.sleep(1)
        assert not beating.ended.is_set() and beating.echoes[-1] == 1.0
        await beating.close(opening)


async def test_who_finds_no_place_is_told_to_wait_and_gets_one_when_a_session_ends(
    embedded: Pair, text: tuple[int, ...]
) -> None:
    """Sessions at work are not evicted, those that came to their end are."""
    async with (
        serve_models(embedded, max_sessions=2, evict_after=0.1) as services,
        calling(services.verifier) as caller,
    ):
        held, ended = replace(decoding(), lockstep=True), decoding()
        await caller.open(held)
        await (await caller.open(ended)).facts(BEGIN + 1)
        with pytest.raises(Busy) as refusal:
            await (await caller.open(replace(decoding(), lockstep=True))).take()
        assert refusal.value.retry_after > 0
        await asyncio.sleep(1.0)
        third = await caller.open(decoding())
        assert reported(await third.facts(UNTIL)) == text[: UNTIL - BEGIN]
