"""A client that is interrupted, closed or refused while it waits for an answer."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem import Client
from tandem.protos.errors import Busy, Unavailable
from tandem.protos.transport import rpc
from tests.services.test_client_heartbeats import (
    WHOLE,
    FrontEnd,
    asking,
    first_chosen,
    none,
    tokens_of,
)
from tests.waiting import LIMIT, until, wait_until

__all__ = ["first_chosen"]


@contextmanager
def serving(front: FrontEnd) -> Iterator[str]:
    """Serve a front end in another thread, because this one blocks; yields its address."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    address, stop = "", asyncio.Event()

    async def serve() -> None:
        nonlocal address
        async with rpc.serving("127.0.0.1", 0, front) as address:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(LIMIT)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT)
        loop.close()


async def once() -> AsyncIterator[None]:
    """Yield one heartbeat, and then nothing."""
    yield
    await asyncio.Event().wait()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_stream_ends_and_leaves_the_client_as_it_was() -> None:
    main = threading.main_thread().ident
    assert main is not None
    front = FrontEnd(once)

    def interrupt(asked: int) -> None:
        wait_until(lambda: len(front.received) > asked)
        signal.pthread_kill(main, signal.SIGINT)

    with serving(front) as address, Client(address) as client:
        for asked in range(3):
            with pytest.raises(KeyboardInterrupt), client.stream([1]) as stream:
                threading.Thread(target=interrupt, args=(asked,)).start()
                list(stream)
        front.pause = none
        assert list(client.generate([1]).token_ids) == WHOLE


def test_closing_a_client_ends_its_streams_in_other_threads_with_an_error() -> None:
    errors: list[BaseException] = []
    front = FrontEnd(once)
    with serving(front) as address:
        client = Client(address)

        def read() -> None:
            try:
                client.generate([1])
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: front.received)
        client.close()
        thread.join(LIMIT)
        assert [(type(each), str(each)) for each in errors] == [
            (Unavailable, "the client is closed")
        ]
        for ask in (client.status, lambda: client.generate([1]), lambda: list(client.stream([1]))):
            with pytest.raises(Unavailable, match="the client is closed"):
                ask()
        client.close()


async def test_a_stream_of_a_client_that_is_closed_says_so() -> None:
    front, problems = FrontEnd(once), list[Any]()
    gc.collect()  # collects what other tests left behind
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    async with asking(front) as client:
        running = asyncio.create_task(tokens_of(client))
        await until(lambda: front.received)
        await client.close()
        with pytest.raises(Unavailable, match="the client is closed"):
            await running
        gc.collect()
        asyncio.get_running_loop().set_exception_handler(None)
        assert not problems, "it still asks whether the front end answers"
        with pytest.raises(Unavailable, match="the client is closed"):
            await tokens_of(client)
        with pytest.raises(Unavailable, match="the client is closed"):
            await client.status()


class Full(FrontEnd):
    """A front end that has no place for a long time."""

    async def StreamGenerate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.received.append(list(request.received))
        raise Busy("full", 3600.0)
        yield


async def test_a_client_that_waits_for_its_next_attempt_is_closed_at_once() -> None:
    full = Full(none)
    async with asking(full) as client:
        running = asyncio.create_task(tokens_of(client))
        await until(lambda: full.received)
        await client.close()
        with pytest.raises(Unavailable, match="the client is closed"):
            await running


async def test_when_one_front_end_is_full_another_is_asked_first(first_chosen: None) -> None:
    full, free = Full(none), FrontEnd(none)
    async with asking(full, free) as client:
        assert await tokens_of(client) == WHOLE
    assert (full.received, free.received) == ([[]], [[]])
