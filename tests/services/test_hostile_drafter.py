"""A drafter is not trusted: whatever it sends, the text is the target's own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from grpc import aio

from tandem.protos.errors import Busy, InvalidRequest, SessionMiss
from tandem.protos.transport import rpc, status
from tandem.v1 import common_pb2, drafter_pb2
from tests.served import Services, Tandem, serve_all
from tests.system.test_same_text import ask
from tests.waiting import until

NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
HUGE = 4_000_000_000
Context = aio.ServicerContext[Any, Any]
Answer = common_pb2.Proposal | bytes | None
Lie = Callable[[int, int], drafter_pb2.ProposeResponse]


def proposal(
    tokens: list[int], parents: list[int] | None = None, choices: int = 0, **told: Any
) -> Lie:
    """Send the same proposal after every commit; parents are distances as on the wire, by default
    those of a chain. With `choices`, the proposal claims that each token was drawn from this number
    of tokens.
    """
    chain = [0, *(1,) * (len(tokens) - 1)]
    said = common_pb2.Proposal(tokens=tokens, parents=parents or chain)
    for _ in range(len(tokens) + 1) if choices else ():
        said.distributions.add(tokens=range(choices), weights=[1] * choices)

    def lie(stream: int, behind: int) -> drafter_pb2.ProposeResponse:
        fields = {"stream": stream, "behind": behind} | told
        message = common_pb2.Proposal(**fields)
        message.MergeFrom(said)
        return drafter_pb2.ProposeResponse(proposals=[message])

    return lie


def failure(packed: bytes) -> Lie:
    """Fail the stream each time that it is opened."""

    def lie(stream: int, behind: int) -> drafter_pb2.ProposeResponse:
        failed = common_pb2.Failure(stream=stream, status=packed)
        return drafter_pb2.ProposeResponse(failures=[failed])

    return lie


def flood(stream: int, behind: int) -> drafter_pb2.ProposeResponse:
    """Send more nodes than a verifier can verify, with arbitrary numbers."""
    proposals = [
        common_pb2.Proposal(
            stream=stream,
            behind=behind + late,
            source=1,
            first=1 + 8 * abs(late),
            tokens=[late % 4000] * 8,
            parents=[0, *(1,) * 7],
            scores=bytes(8),
        )
        for late in range(-100, 1000)
        if behind + late >= 0
    ]
    return drafter_pb2.ProposeResponse(proposals=proposals)


LIES = {
    "unknown-tokens": proposal([9999, HUGE]),
    "wrong-tokens": proposal([7] * 8),
    "wrong-tokens-that-are-certain": proposal([7] * 8, scores=bytes(8)),
    "other-scores-than-tokens": proposal([7] * 8, scores=bytes(3)),
    "parents-behind-the-first-node": proposal([5, 6], [HUGE, 9]),
    "parents-that-were-never-sent": proposal([5, 6], [3, 1], first=1000),
    "no-parents": proposal([5, 6], [1]),
    "too-many-nodes": proposal([5] * 2000),
    "deeper-than-the-context": proposal([5] * 64),
    "numbers-without-end": proposal([5, 6], first=HUGE, source=HUGE),
    "behind-a-text-that-will-never-be": proposal([5, 6], behind=HUGE),
    "behind-nothing": proposal([5, 6], behind=0),
    "about-its-cache": proposal([5, 6], cached_len=HUGE, epoch=HUGE),
    "for-a-stranger": proposal([5, 6], stream=HUGE),
    "for-nobody": proposal([5, 6], stream=0),
    "more-choices-than-fit-into-a-call": proposal([5], choices=528_400),
    "a-flood": flood,
    "it-is-busy-for-ever": failure(status.pack(Busy("not now", 0.01))),
    "it-lost-the-session": failure(status.pack(SessionMiss("what session?"))),
    "nothing-is-right": failure(status.pack(InvalidRequest.of("context.tokens", "are bad"))),
    "a-failure-without-a-status": failure(b"\xff\xfe"),
}
WORDS = {"no-message": b"\xff\xff\xff", "nothing": b"", "garbled-details": None}


@dataclass
class Hostile:
    """A drafter that answers with what a test defines, or with bytes (`words`) that are no
    message.
    """

    lie: Lie
    words: bytes | None = b""
    told: int = 0  # lies
    said: int = 0  # words

    async def proposal(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        async for packed in requests:
            self.said += 1
            if self.words is None:
                garbled = (("grpc-status-details-bin", b"\xff\xfe"),)
                await context.abort(grpc.StatusCode.ABORTED, "no", garbled)
            yield self.words or b""
            request = drafter_pb2.ProposeRequest.FromString(packed)
            for stream, behind in owed(request):
                self.told += 1
                message: Message = self.lie(stream, behind)
                yield message.SerializeToString()


def owed(request: drafter_pb2.ProposeRequest) -> Iterator[tuple[int, int]]:
    """Return the streams that received something, and the length of their texts."""
    for opening in request.open:
        yield opening.stream, opening.context.base + len(opening.context.tokens)
    for commit in request.commits:
        yield commit.stream, commit.start + len(commit.tokens)


@asynccontextmanager
async def behind(services: Services, hostile: Hostile) -> AsyncIterator[Tandem]:
    """Run the real verifier with this drafter."""
    handlers = {"Propose": grpc.stream_stream_rpc_method_handler(hostile.proposal)}
    server = aio.server(options=rpc.SERVER_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        system = replace(services, drafter=f"127.0.0.1:{port}")
        async with serve_all(system) as tandem:
            yield tandem
    finally:
        await server.stop(0)


@dataclass(frozen=True)
class Scene:
    """One drafter for all false proposals, and the tokens of the answer without it."""

    drafter: Hostile
    tandem: Tandem
    plain: list[int]

    async def tokens(self, levels: int | None = None) -> list[int]:
        """The answer is drafted by this drafter alone, because no earlier answers are known."""
        request = ask("Once upon a time", temperature=1.0, seed=8, tokens=16)
        request.cache_salt = secrets.token_hex(8)
        if levels is not None:
            request.speculation.num_speculative_tokens = levels
        return list((await self.tandem.stub.Generate(request)).token_ids)

    async def drafted(self) -> int:
        """Check that the text is the same; return the number of false proposals, 0 if the drafter
        was not connected yet.
        """
        assert await self.tokens() == self.plain
        return self.drafter.told


@pytest.fixture(scope="module")
async def scene(services: Services) -> AsyncIterator[Scene]:
    drafter = Hostile(LIES["wrong-tokens"])
    async with behind(services, drafter) as tandem:
        scene = Scene(drafter, tandem, [])
        scene.plain.extend(await scene.tokens(levels=0))
        yield scene


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_no_lie_of_a_drafter_changes_the_text(scene: Scene, lie: Lie) -> None:
    scene.drafter.lie, scene.drafter.told = lie, 0
    await until(scene.drafted)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
async def test_nothing_that_a_drafter_says_changes_the_text(
    scene: Scene, words: bytes | None
) -> None:
    scene.drafter.words, scene.drafter.said = words, 0
    await until(lambda: scene.drafter.said)
    assert await scene.tokens() == scene.plain
