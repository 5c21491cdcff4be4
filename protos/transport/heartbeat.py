"""Heartbeats: the other end of a stream sends a message every quarter of a second, or is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 0.25  # most seconds between two messages
SLOWEST_CONNECTION = 50_000 / 8  # bytes per second of the slowest connection that is used
MAX_MISSED = 5  # heartbeats after which the other end is lost: at most 1.5 s after it fell silent


def missed(size: int) -> int:
    """Return the heartbeats after which an other end is lost that still has `size` bytes to
    receive.
    """
    return MAX_MISSED + int(size / SLOWEST_CONNECTION / SECONDS)


async def until_silent(
    received: Callable[[], object],
    beat: Callable[[], None] = lambda: None,
    limit: Callable[[], int] = lambda: MAX_MISSED,
) -> None:
    """Return when `received`, whose result changes with each message, has not changed for `limit`
    heartbeats. `beat` sends a message. Heartbeats are counted, not seconds, because this process
    may be the one that was suspended.
    """
    count = 0
    while count < limit():
        before = received()
        await asyncio.sleep(SECONDS)
        beat()
        count = count + 1 if received() == before else 0
