"""The end of a service: it takes nothing new, and lets what runs finish, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tandem.protos.errors import Unavailable


class Drain:
    """What runs in a service, and whether it is stopping; to be used on one event loop."""

    def __init__(self, seconds: float = 0.0) -> None:
        """Once it is stopping, what runs has so many seconds."""
        self.begun = False
        self._seconds = seconds
        self._running = 0
        self._over = asyncio.Event()

    def check(self) -> None:
        """Raise Unavailable if nothing new is taken."""
        if self.begun:
            raise Unavailable("the service is stopping")

    @contextmanager
    def running(self) -> Iterator[None]:
        """A scope in which something runs; raises Unavailable if it may not begin."""
        self.check()
        self.begin_one()
        try:
            yield
        finally:
            self.end_one()

    def begin_one(self) -> None:
        """Something runs, although the service may be stopping."""
        self._running += 1

    def end_one(self) -> None:
        """It does no more."""
        self._running -= 1
        if not self._running and self.begun:
            self._over.set()

    def cut(self) -> None:
        """Wait no longer for what runs."""
        self._seconds = 0.0
        self._over.set()

    async def finish(self) -> None:
        """Take nothing new; returns when nothing runs any more, or the time is over."""
        self.begun = True
        if not self._running or not self._seconds:
            return
        try:
            async with asyncio.timeout(self._seconds):
                await self._over.wait()
        except TimeoutError:
            pass
