"""Stops a service: it refuses new work, and running work has a limited time to finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tandem.protos.errors import Unavailable

LAST_SECONDS = 0.5  # seconds for aborted work to report its error to the client


class Drain:
    """Counts the running work of a service, and records whether the service is stopping. A drain
    may be used on one event loop only.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        """Once the service refuses new work, running work has `seconds` seconds to finish."""
        self.leaving = False  # whether clients should send new work elsewhere
        self.begun = False  # whether new work is refused
        self._seconds = seconds
        self._running = 0
        self._scopes: set[asyncio.Timeout] = set()
        self._over = asyncio.Event()
        self._cut = asyncio.Event()

    def check(self) -> None:
        """Raise Unavailable if the service refuses new work."""
        if self.begun:
            raise Unavailable("the service is stopping")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Context manager that counts its body as running work. Raises Unavailable if the service
        refuses new work, and when the time for running work is over.
        """
        self.check()
        self.begin_one()
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                yield
        except TimeoutError:
            if scope.expired():
                raise Unavailable("the service stopped before the answer was complete") from None
            raise
        finally:
            self._scopes.discard(scope)
            self.end_one()

    def begin_one(self) -> None:
        """Record that a piece of work begins, even if the service is stopping."""
        self._running += 1

    def end_one(self) -> None:
        """Record that a piece of work has ended."""
        self._running -= 1
        if not self._running and self.begun:
            self._over.set()

    def cut(self) -> None:
        """Stop waiting for running work."""
        self._seconds = 0.0
        self._cut.set()
        self._over.set()

    async def leave(self, seconds: float) -> None:
        """Accept new work for `seconds` more seconds, while clients learn that the service is
        stopping. After `cut` this method returns at once.
        """
        self.leaving = True
        await _until(self._cut, seconds)

    async def finish(self) -> None:
        """Refuse new work. Returns when all running work has finished, or its time is over."""
        self.leaving = self.begun = True
        if self._running and self._seconds:
            await _until(self._over, self._seconds)
        if self._scopes:
            self._over.clear()
            for scope in self._scopes:
                scope.reschedule(asyncio.get_running_loop().time())
            await _until(self._over, LAST_SECONDS)


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but at most `seconds` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
