"""A caller of a drafter over real gRPC."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from google.rpc import error_details_pb2, status_pb2
from prometheus_client import CollectorRegistry

from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.protos.streams import Drafting, Fact, Guess
from tandem.protos.transport import rpc
from tandem.protos.types import LAST_TURN, Context, DraftShape, SamplingParams
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import decode_guess
from tandem.v1 import drafter_pb2, drafter_pb2_grpc
from tandem.v1.common_pb2 import Closing

SHAPE = DraftShape(12, 4, 32)
GREEDY = SamplingParams()
Tokens = tuple[int, ...]


class Caller:
    """One call: what it sends, and what came."""

    def __init__(self, stub: Any) -> None:
        self._requests: asyncio.Queue[drafter_pb2.GuessRequest | None] = asyncio.Queue()
        self.guesses: dict[int, list[Guess]] = {}
        self.failures: dict[int, str] = {}
        self.sent: list[float] = []
        self._changed = asyncio.Event()
        self._salt = secrets.token_bytes(15)
        self._call = stub.Guess(self._outgoing())
        self._reading = asyncio.create_task(self._read())

    async def _outgoing(self) -> AsyncIterator[drafter_pb2.GuessRequest]:
        while (request := await self._requests.get()) is not None:
            yield request

    async def _read(self) -> None:
        async for response in self._call:
            self.sent.append(response.sent)
            for message in response.guesses:
                self.guesses.setdefault(message.stream, []).append(decode_guess(message))
            for failure in response.failures:
                self.failures[failure.stream] = reason(failure.status)
            self._changed.set()

    def name(self, number: int) -> bytes:
        """A session's id, which no other call has."""
        return self._salt + bytes([number])

    def say(self, **parts: Any) -> None:
        """A message."""
        self._requests.put_nowait(drafter_pb2.GuessRequest(**parts))

    def open(self, stream: int, context: Context, **asked: Any) -> None:
        """An opening."""
        opening = Drafting(context, **({"sampling": GREEDY, "shape": SHAPE} | asked))
        self.say(open=[codec.encode_drafting(stream, opening)])

    def tell(self, stream: int, start: int, tokens: Tokens) -> None:
        """A fact."""
        self.say(facts=[codec.encode_fact(stream, Fact(start, tokens))])

    def close(self, *names: bytes) -> None:
        """Have sessions forgotten, whatever their turns."""
        self.say(closings=[Closing(session_id=name, turn=LAST_TURN) for name in names])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for an answer."""
        async with asyncio.timeout(30):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def once(self, stream: int, context: Context, **asked: Any) -> Guess:
        """A single draft."""
        self.open(stream, context, once=True, **asked)
        await self.until(lambda: stream in self.guesses or stream in self.failures)
        (guess,) = self.guesses[stream]
        return guess

    async def end(self) -> None:
        """Hang up."""
        self._requests.put_nowait(None)
        await asyncio.wait_for(self._reading, 10)


def reason(packed: bytes) -> str:
    """Why something failed."""
    for detail in status_pb2.Status.FromString(packed).details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            return info.reason
    return "?"


@asynccontextmanager
async def served(**config: Any) -> AsyncIterator[Any]:
    """A drafter's stub; fails if a session is left."""
    settings = ModelServiceConfig(**config)
    async with (
        drafter_service.serving(settings, CollectorRegistry()) as address,
        rpc.connect(address) as channel,
    ):
        stub = drafter_pb2_grpc.DrafterServiceStub(channel)
        yield stub
        for _ in range(100):
            if not (left := await sessions(stub)):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{left} sessions are left")


async def sessions(stub: Any) -> int:
    """How many are open."""
    described = await stub.DescribeDrafter(drafter_pb2.DescribeDrafterRequest())
    return int(described.model.sessions)
