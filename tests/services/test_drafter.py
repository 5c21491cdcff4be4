"""The drafter over real gRPC receives openings and commits, and sends proposals."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tandem.protos.errors import InvalidRequest, SessionMiss, StaleTurn
from tandem.protos.streams import Commit, Proposal
from tandem.protos.types import Context
from tandem.protos.wire import codec
from tandem.v1.common_pb2 import Closing
from tests.served import Services
from tests.services.caller import Caller, Stream, again, calling, drafting
from tests.services.trees import Tokens
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
async def caller(services: Services, nothing_left: None) -> AsyncIterator[Caller]:
    """Yield a call whose sessions are all closed at the end."""
    async with calling(services.drafter, drafter=True) as caller:
        yield caller


async def proposed(stream: Stream, behind: int) -> list[Proposal]:
    """Return the replies up to a proposal at this length; raise the stream's error."""
    proposals: list[Proposal] = []
    while not proposals or proposals[-1].behind != behind:
        proposals.append(await stream.take())
    return proposals


async def test_nonsense_fails_its_own_stream_alone(caller: Caller, prompts: list[Tokens]) -> None:
    prompt, length = prompts[0], len(prompts[0])
    nobody = replace(drafting(), context=Context(b"short", 1, 0, prompt))
    wrong = await caller.open(drafting((5, 1 << 31)), nobody)
    unknown, gap, going = await caller.open(*(drafting(prompt) for _ in range(3)))
    for stream in wrong:
        with pytest.raises(InvalidRequest):
            await stream.take()
    for stream in (unknown, gap, going):
        await stream.take()
    await unknown.tell(length, (1 << 31,))
    await unknown.tell(length + 1, (5,))
    await gap.tell(length + 7, (5,))
    await going.tell(length, ())
    await caller.send(
        commits=[codec.encode_commit(99, Commit(0, (5,)))],
        closings=[Closing(session_id=name) for name in (b"nobody", b"")],
        conditions={"price": math.nan, "token_seconds": -1.0, "delay": math.inf},
    )
    await going.tell(length, (5,))
    for stream in (unknown, gap):
        with pytest.raises(SessionMiss):
            await proposed(stream, -1)
    await proposed(going, length + 1)


async def test_a_newer_opening_ends_the_older(caller: Caller, prompts: list[Tokens]) -> None:
    opening, text = drafting(prompts[0]), (*prompts[0], 5, 6)
    older = await caller.open(opening)
    await older.take()
    newer = await caller.open(again(opening, 2, text))
    await newer.take()
    with pytest.raises(StaleTurn):
        await proposed(older, -1)
    said = older.queue.qsize()  # proposals from a pass that had begun
    await older.tell(len(prompts[0]), (5,))
    await newer.tell(len(text), (7,))
    assert {proposal.source for proposal in await proposed(newer, len(text) + 1)} == {2}
    assert older.queue.qsize() == said


async def test_the_senders_clock_comes_back_and_a_silent_side_says_something(
    caller: Caller,
) -> None:
    await until(lambda: caller.echoes.count(1.0) > 1)
