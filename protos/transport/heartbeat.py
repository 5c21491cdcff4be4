"""Heartbeats: each end of a stream sends a message at least every quarter of a second. If an end of
a stream misses several heartbeats, the other end considers it lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SECONDS = 0.25  # maximum seconds between two messages
SLOWEST_CONNECTION = 50_000 / 8  # bytes per second on the slowest supported connection
# number of missed heartbeats after which the other end is considered lost; this takes at most 1.5 s
MAX_MISSED = 5


def missed(size: int) -> int:
    """Return how many heartbeats the other end may miss before it is considered lost, while it
    still has to receive `size` bytes.
    """
    return MAX_MISSED + int(size / SLOWEST_CONNECTION / SECONDS)


async def until_silent(
    received: Callable[[], object],
    beat: Callable[[], None] = lambda: None,
    limit: Callable[[], int] = lambda: MAX_MISSED,
) -> None:
    """Wait until no message has arrived for `limit` heartbeats. The result of `received` must
    change with each message. At every heartbeat, `beat` is called to send a message. The function
    counts heartbeats instead of seconds, because this process itself may have been suspended.
    """
    count = 0
    while count < limit():
        before = received()
        await asyncio.sleep(SECONDS)
        beat()
        count = count + 1 if received() == before else 0
