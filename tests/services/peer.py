"""A service at the other end of a link that sends what a test tells it, a subscriber, and a link
between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from grpc import aio

from tandem.orchestrator.links.relays import VerifierLink, verifier_link
from tandem.protos.errors import TandemError
from tandem.protos.streams import Commit, Decoding
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.types import Context, SamplingParams
from tandem.v1 import (
    common_pb2,
    drafter_pb2,
    drafter_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from tests.waiting import until

PATIENT, HASTY = 10_000, 4  # missed heartbeats until a peer counts as lost
SESSION = b"0123456789abcdef"
ServicerContext = aio.ServicerContext[Any, Any]


class Peer(verifier_pb2_grpc.VerifierServiceServicer, drafter_pb2_grpc.DrafterServiceServicer):
    """A fake verifier or drafter: it keeps what it is sent, and sends what a test tells it."""

    def __init__(self, answer: Callable[[Any], Any] | None = None) -> None:
        self.answer = answer
        self.messages: list[Any] = []
        self.mute = False
        self.calls = 0
        self.say: asyncio.Queue[Any] = asyncio.Queue()

    async def Decode(self, requests: Any, context: ServicerContext) -> AsyncIterator[Any]:
        async for response in self._serve(requests, verifier_pb2.DecodeResponse):
            yield response

    async def Propose(self, requests: Any, context: ServicerContext) -> AsyncIterator[Any]:
        async for response in self._serve(requests, drafter_pb2.ProposeResponse):
            yield response

    async def _serve(self, requests: Any, kind: type[Any]) -> AsyncIterator[Any]:
        self.calls += 1
        self.say = asyncio.Queue()

        async def read() -> None:
            async for request in requests:
                self.messages.append(request)
                self.say.put_nowait(self.answer(request) if self.answer else kind())
            self.say.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (response := await self.say.get()) is not None:
                if not self.mute:
                    if self.messages and not isinstance(response, bytes):
                        response.sent = self.messages[-1].sent
                    yield response
        finally:
            reading.cancel()

    def sent(self, field: str) -> list[Any]:
        return [item for message in self.messages for item in getattr(message, field)]


class Subscriber:
    """Remembers what is reported to it."""

    def __init__(self) -> None:
        self.reported: list[Any] = []

    def connected(self) -> None:
        self.reported.append("connected")

    def lost(self) -> None:
        self.reported.append("lost")

    def receive(self, item: Commit) -> None:
        self.reported.append(list(item.tokens))

    def failed(self, error: TandemError) -> None:
        self.reported.append(type(error))


@contextmanager
def patient() -> Iterator[None]:
    """Let no peer count as lost, however slow this machine is. A test in which a peer falls silent
    sets `heartbeat.MAX_MISSED` to HASTY, and resets it when the loss was noticed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeat, "SECONDS", 0.02)
        patch.setattr(heartbeat, "MAX_MISSED", PATIENT)
        yield


@asynccontextmanager
async def served(peer: Peer, port: int = 0) -> AsyncIterator[str]:
    """Serve a peer; yields its address. At the end of the scope the peer stops at once."""
    server = aio.server(options=rpc.SERVER_OPTIONS)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(peer, server)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(peer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def linked(peer: Peer) -> AsyncIterator[tuple[VerifierLink, Subscriber]]:
    """Connect a link to a peer; yields the link and a subscriber of it."""
    with patient():
        async with served(peer) as address, linked_to(address) as (link, subscriber):
            yield link, subscriber


@asynccontextmanager
async def linked_to(address: str) -> AsyncIterator[tuple[VerifierLink, Subscriber]]:
    """Do the same for an address."""
    async with rpc.connect(address) as channel, verifier_link(channel) as link:
        subscriber = Subscriber()
        link.subscribe(subscriber)
        await until(lambda: link.connected)
        subscriber.reported.clear()
        yield link, subscriber


def commits(*numbered: tuple[int, int]) -> verifier_pb2.DecodeResponse:
    """Return the commits of one token, by stream."""
    said = [common_pb2.Commit(stream=stream, tokens=[token]) for stream, token in numbered]
    return verifier_pb2.DecodeResponse(commits=said)


def opening(tokens: int = 1) -> Decoding:
    return Decoding(Context(SESSION, 1, 0, (1 << 20,) * tokens), SamplingParams(), tokens + 1)
