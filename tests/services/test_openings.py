"""Openings of a verifier over real gRPC: which ones are served, and what ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.engine import streams
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.errors import Busy, InvalidRequest, SessionMiss, StaleTurn
from tandem.protos.streams import Commit, Proposal
from tandem.protos.transport import rpc
from tandem.v1.common_pb2 import Proposal as Bent
from tandem.verifier_service import service as verifier_service
from tests.served import Pair, Services
from tests.services.caller import (
    BEGIN,
    LONG,
    PROMPT,
    UNTIL,
    Caller,
    again,
    calling,
    decoding,
    reported,
)
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.usefixtures("nothing_left", "patient")


@pytest.fixture(scope="module")
async def for_two(embedded: Pair) -> AsyncIterator[str]:
    """Serve a verifier with places for two sessions, which soon evicts idle ones."""
    limits = {"max_sessions": 2, "evict_after": 0.01, "session_ttl": 0.02, "threads": 1}
    config = ModelServiceConfig(model=embedded.target, **limits)
    async with verifier_service.serving(config, CollectorRegistry()) as address:
        yield address


async def test_a_newer_opening_ends_the_older_decoding_whoever_asks(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier) as one, calling(services.verifier) as other:
        older = await one.open(opening)
        known = reported([await older.take()])
        newer = await other.open(again(opening, 2, PROMPT + known))
        commits = [await newer.take()]
        assert await older.silent(), "it is over, and that is no failure"
        assert commits[0].reused >= BEGIN
        commits += await newer.commits(LONG)
        assert known + reported(commits, BEGIN + len(known)) == text


async def test_an_opening_that_is_not_newer_is_refused_and_harms_nobody(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = replace(again(decoding(), 3), lockstep=True)
    async with calling(services.verifier) as caller:
        stream = await caller.open(opening)
        for turn in (3, 2):
            with pytest.raises(StaleTurn):
                await (await caller.open(again(opening, turn))).take()
        await stream.say(Proposal(BEGIN))
        assert (await stream.take()).tokens == text[:1]


async def test_openings_fail_one_by_one(services: Services, text: tuple[int, ...]) -> None:
    """The openings come in one message; each refusal says what is wrong, and the others go on."""
    wrong: list[tuple[type[Exception], str | None, dict[str, Any]]] = [
        (SessionMiss, None, {"base": 10}),
        (SessionMiss, None, {"epoch": 77}),
        (InvalidRequest, r"context\.session_id", {"session_id": b"short"}),
        (InvalidRequest, r"context\.tokens", {"tokens": ()}),
        (InvalidRequest, r"context\.tokens", {"tokens": (5000,)}),
        (InvalidRequest, None, {"tokens": PROMPT * UNTIL}),
    ]
    openings = [decoding() for _ in range(len(wrong) + 1)]
    for place, (_, _, fields) in enumerate(wrong):
        context = replace(openings[place].context, **fields)
        openings[place] = replace(openings[place], context=context)
    async with calling(services.verifier) as caller:
        *failing, stream = await caller.open(*openings)
        for (error, field, _), each in zip(wrong, failing, strict=True):
            with pytest.raises(error, match=field):
                await each.take()
        assert reported(await stream.commits(UNTIL)) == text[: UNTIL - BEGIN]


async def test_a_text_may_end_one_token_after_the_context_and_a_longer_one_is_refused(
    services: Services,
) -> None:
    """The verifier refuses the longer text as the front end does, because a caller may come without
    a front end.
    """
    context = 512
    async with calling(services.verifier) as caller:
        for until in (context + 2, 2**32 - 1):
            with pytest.raises(InvalidRequest, match=f"until is {until}, above {context + 1}"):
                await (await caller.open(decoding(until))).take()
        stream = await caller.open(decoding(context + 1, tokens=(5,) * (context - 2)))
        assert len(reported(await stream.commits(context + 1), context - 2)) == 3


@pytest.mark.parametrize(
    ("tokens", "parents", "field"),
    [
        ([1, 2], [0, 9], "parents"),  # a parent before the first token
        ([4096], [0], "tokens"),
        ([1] * 65, [*range(65)], "tokens"),
    ],
)
async def test_the_only_proposal_that_was_asked_for_must_be_a_tree_of_tokens(
    tokens: list[int], parents: list[int], field: str, services: Services
) -> None:
    """A wrong proposal ends its stream if a step has to wait for it; other wrong proposals are
    ignored.
    """
    async with calling(services.verifier) as caller:
        openings = [replace(decoding(), lockstep=True, once=once) for once in (True, False)]
        asked, going = await caller.open(*openings)
        for each in (asked, going):
            bent = Bent(stream=each.number, behind=BEGIN, tokens=tokens, parents=parents)
            await caller.send(proposals=[bent])
        with pytest.raises(InvalidRequest, match=rf"draft\.{field}"):
            await asked.take()
        assert (await going.take()).drafted == 0
        await caller.decode_another()
        assert asked.queue.empty()


async def test_closing_ends_a_decoding_and_forgets_its_session(services: Services) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier) as caller:
        stream = await caller.open(opening)
        first = await stream.take()
        await caller.close(opening)
        await services.assert_no_session_is_left()
        assert await stream.silent()
        again = await (await caller.open(opening)).take()
        assert again.epoch not in (0, first.epoch), "only its text is cached"


async def test_another_caller_goes_on_with_the_text_of_a_lost_one(
    services: Services, text: tuple[int, ...]
) -> None:
    opening = decoding(LONG)
    async with calling(services.verifier, lost=True) as caller:
        first = await (await caller.open(opening)).commits(BEGIN + 20)
    known = reported(first)
    async with calling(services.verifier) as caller:
        stream = await caller.open(again(opening, 2, PROMPT + known))
        commits = await stream.commits(LONG)
        assert commits[0].reused >= BEGIN + 19, "what it holds is not computed anew"
        assert known + reported(commits, BEGIN + len(known)) == text


async def test_a_lost_worker_cannot_close_its_successors_session(
    services: Services, text: tuple[int, ...]
) -> None:
    """The session stays open while the successor decodes, and afterwards."""
    opening = decoding(LONG)
    async with calling(services.verifier) as lost, calling(services.verifier) as successor:
        await (await lost.open(opening)).take()
        stream = await successor.open(again(opening, 2))
        commits = [await stream.take()]
        await lost.close(opening)
        commits += await stream.commits(LONG)
        assert reported(commits) == text
        await lost.close(opening)
        longer = PROMPT + text[:-1]
        third = await successor.open(again(opening, 3, longer))
        assert (await third.take()).reused >= len(longer) - 1


async def test_a_caller_that_beats_is_answered_and_a_silent_one_is_gone(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(services.verifier) as beating:
        await until(lambda: 1.0 in beating.echoes)
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.01)
    async with calling(services.verifier) as silent:
        await until(silent.ended.is_set)


async def begin(caller: Caller) -> None:
    """Open a session that is at work until its caller has gone."""
    stream = await caller.open(replace(decoding(), lockstep=True))
    await stream.say(Proposal(BEGIN))
    await stream.take()


async def test_who_finds_no_place_is_told_to_wait_and_gets_that_of_a_lost_caller(
    for_two: str, text: tuple[int, ...]
) -> None:
    """A lost caller's sessions end, and no others are evicted."""
    async with calling(for_two) as caller:
        await begin(caller)
        async with calling(for_two, lost=True) as other:
            await begin(other)
            with pytest.raises(Busy) as refusal:
                await (await caller.open(decoding())).take()
            assert refusal.value.retry_after > 0

        async def decoded() -> list[Commit]:
            stream = await caller.open(decoding())
            try:
                return [await stream.take(), *await stream.commits(UNTIL)]
            except Busy:
                return []

        assert reported(await until(decoded, "a place is free")) == text[: UNTIL - BEGIN]


async def test_an_orphaned_session_is_reclaimed(for_two: str) -> None:
    async with calling(for_two, lost=True) as caller:
        await (await caller.open(decoding())).commits(UNTIL)
    async with rpc.connect(for_two) as channel:
        client = VerifierClient(channel)

        async def reclaimed() -> bool:
            return not (await client.describe(LIMIT)).sessions

        await until(reclaimed)
