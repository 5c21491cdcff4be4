"""What ends the jobs of a call, at the serving end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from tandem.drafter_service.tree.pending import WaitingInput
from tandem.engine import streams
from tandem.engine.call import Call
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.engine.streams import StreamServer
from tandem.protos.streams import Decoding
from tandem.protos.types import Context, SamplingParams
from tests.laws.machine import Machine
from tests.waiting import LIMIT


class Served:
    """A server, and one call with requests that are stream numbers, some with the name of a session
    to open; its jobs wait until they are ended.
    """

    def __init__(self, thread: ModelThread) -> None:
        self.server: StreamServer[Any, Any] = StreamServer(thread)
        self.requests: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.begun: asyncio.Queue[bytes] = asyncio.Queue()
        self.ended: asyncio.Queue[bytes] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.responses: AsyncGenerator[int, None] = self.server.serve(
            self._arriving(), self._receive, lambda call: -1 if call.last else len(call.streams)
        )

    async def open(self, number: int, name: bytes) -> None:
        """Open a stream, and wait until a response has come and its job has begun."""
        self.requests.put_nowait((number, name))
        await anext(self.responses)
        assert await self.begun.get() == name

    async def check_ended(self, *names: bytes) -> None:
        """Wait until the jobs of these sessions, and of no other, have ended."""
        async with asyncio.timeout(LIMIT):
            ended = [await self.ended.get() for _ in names]
        assert sorted(ended) == sorted(names) and self.ended.empty()

    async def _arriving(self) -> AsyncIterator[tuple[int, bytes]]:
        while True:
            yield await self.requests.get()

    def _receive(self, request: tuple[int, bytes], call: Call[Any, Any]) -> None:
        number, name = request
        if name:
            opening = Decoding(Context(name, 1, 0, (1,)), SamplingParams(), 9)
            self.server.open(call, number, opening, lambda opening, _: self._job(name))
        call.changed.set()

    def _job(self, name: bytes) -> Job:
        self._loop.call_soon_threadsafe(self.begun.put_nowait, name)
        try:
            yield WaitingInput(lambda: None)
        finally:
            self._loop.call_soon_threadsafe(self.ended.put_nowait, name)


async def test_a_stream_whose_number_is_opened_again_ends_and_the_newer_is_left_alone() -> None:
    with Machine().thread() as thread:
        served = Served(thread)
        async with aclosing(served.responses):
            await served.open(1, b"a")
            await served.open(2, b"b")
            await served.open(1, b"c")
            await served.check_ended(b"a")
        await served.check_ended(b"b", b"c")


async def test_the_jobs_of_a_silent_caller_end_although_it_takes_no_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gRPC does not ask for the next response while one is under way."""
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 10 * LIMIT)
    with Machine().thread() as thread:
        served = Served(thread)
        await served.open(1, b"a")
        monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.0)
        served.requests.put_nowait((0, b""))  # the caller's last message
        await served.check_ended(b"a")
        with pytest.raises(StopAsyncIteration):
            await anext(served.responses)


async def test_a_service_that_stops_leaves_the_end_of_a_call_to_its_caller() -> None:
    """A call that ends while its caller writes may lose responses that were sent
    (grpc/grpc#36066).
    """
    with Machine().thread() as thread:
        served = Served(thread)
        async with aclosing(served.responses):
            await served.open(1, b"a")
            await served.server.drained()
            while await anext(served.responses) != -1:
                pass
            end = asyncio.ensure_future(anext(served.responses))
            for _ in range(3):
                served.requests.put_nowait((0, b""))
                await asyncio.sleep(0)
            assert not end.done()
            end.cancel()
            await asyncio.wait((end,))
        await served.check_ended(b"a")
