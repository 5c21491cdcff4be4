"""Heartbeats: each end of a stream sends a message at least every quarter of a second. An end that
misses several heartbeats is taken for lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 0.25  # most seconds between two messages
SLOWEST_CONNECTION = 50_000 / 8  # bytes per second of the slowest connection that is used
MAX_MISSED = 5  # missed heartbeats after which the other end is lost: at most 1.5 s of silence


def missed(size: int) -> int:
    """Return after how many missed heartbeats the other end is lost if it still has to receive
    `size` bytes.
    """
    return MAX_MISSED + int(size / SLOWEST_CONNECTION / SECONDS)


async def until_silent(
    received: Callable[[], object],
    beat: Callable[[], None] = lambda: None,
    limit: Callable[[], int] = lambda: MAX_MISSED,
) -> None:
    """Return when the result of `received`, which changes with each message, has stayed the same
    for `limit` heartbeats. `beat` sends a message. The function counts heartbeats instead of
    seconds, because this process itself may have been suspended.
    """
    count = 0
    while count < limit():
        before = received()
        await asyncio.sleep(SECONDS)
        beat()
        count = count + 1 if received() == before else 0
