"""Whether the other end of a stream still answers: it sends something every quarter of a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 0.25  # between two messages at the most
SLOWEST = 50_000 / 8  # bytes per second of the slowest connection that is used
MISSED = 5  # heartbeats after which the other end is lost: 1.5 s after it fell silent at the most


def missed(size: int) -> int:
    """Heartbeats after which the other end is lost that may have so many bytes to receive yet."""
    return MISSED + int(size / SLOWEST / SECONDS)


async def until_silent(
    received: Callable[[], object],
    beat: Callable[[], None] = lambda: None,
    limit: Callable[[], int] = lambda: MISSED,
) -> None:
    """Return when `received`, which differs if something came, has stopped changing for `limit`
    heartbeats; `beat` has something sent. Counts heartbeats, not seconds: this process may be the
    one that was suspended.
    """
    count = 0
    while count < limit():
        before = received()
        await asyncio.sleep(SECONDS)
        beat()
        count = count + 1 if received() == before else 0
