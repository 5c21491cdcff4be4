"""The client for programs without asyncio. The client runs its event loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from tandem.client.client import AsyncClient, Stream
from tandem.client.request import Prompt
from tandem.protos.errors import Unavailable
from tandem.v1 import orchestrator_pb2 as api

END_SECONDS = 2.0  # maximum seconds to wait for tasks to end
Result = TypeVar("Result")


class Client:
    """The synchronous client. Several threads may use one client at once.

    Args:
        addresses: Front ends that serve the same model, by default 127.0.0.1:50051.
        settings: The other arguments of AsyncClient.

    Raises:
        Unusable: A file cannot be used, or a token would be sent to another machine without TLS.
    """

    def __init__(self, *addresses: str, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tandem", daemon=True)
        self._thread.start()
        self._client = self._run(self._connect(addresses, settings))

    def generate(self, prompt: Prompt, **options: Any) -> api.GenerateResponse:
        """Return the whole answer. The options and errors are those of `AsyncClient.stream`."""
        return self._run(self._client.generate(prompt, **options))

    def stream(self, prompt: Prompt, **options: Any) -> SyncStream:
        """Return the answer's chunks as a stream, with the options of `AsyncClient.stream`."""
        return SyncStream(self, self._client.stream(prompt, **options))

    def status(self) -> api.GetStatusResponse:
        """Return the status of the models from the first front end that answers."""
        return self._run(self._client.status())

    def close(self) -> None:
        """Close all connections. Running streams raise Unavailable."""
        if self._thread.is_alive():
            self._run(self._client.close())
            self._run(_ended(lambda task: True))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @staticmethod
    async def _connect(addresses: Sequence[str], settings: dict[str, Any]) -> AsyncClient:
        return AsyncClient(*addresses, **settings)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop and wait for its result. If the wait is interrupted,
        the coroutine is cancelled. The interrupt is raised when the coroutine has ended, or after
        END_SECONDS.
        """
        if not self._thread.is_alive():
            work.close()
            raise Unavailable("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                self._run(_ended(lambda task: task.cancelling() > 0))
            raise


class SyncStream:
    """Yields the chunks of an answer. After the last chunk, `response` holds the whole answer."""

    def __init__(self, client: Client, stream: Stream) -> None:
        self._client = client
        self._stream = stream

    @property
    def response(self) -> api.GenerateResponse | None:
        """The whole answer, or None until the last chunk has been read."""
        return self._stream.response

    def __iter__(self) -> Iterator[api.Chunk]:
        chunks = aiter(self._stream)
        with suppress(StopAsyncIteration):
            while True:
                yield self._client._run(_next(chunks))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client._run(self._stream.close())


async def _next(chunks: Any) -> api.Chunk:
    chunk: api.Chunk = await anext(chunks)
    return chunk


async def _ended(which: Callable[[asyncio.Task[Any]], bool]) -> None:
    """Wait until all other tasks that `which` selects have ended, but at most END_SECONDS."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if ending := [task for task in others if which(task)]:
        await asyncio.wait(ending, timeout=END_SECONDS)
