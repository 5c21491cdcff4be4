"""Chunks on their way to a reader, who may be slow or take nothing at all.

Knows neither requests nor places: a writer may be stopped and begin again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

QUEUE = 64  # chunks
STALL_SECONDS = 3.0
IDLE_SECONDS = 0.25

Chunk = TypeVar("Chunk")


async def read_ahead(
    begin: Callable[[], AsyncGenerator[Chunk, None]],
) -> AsyncGenerator[Chunk | None, None]:
    """What is written, through a queue; None when there was nothing for IDLE_SECONDS. When it was
    full for STALL_SECONDS, the writer is closed; when the reader has taken half of it, `begin` is
    called again for the rest. Raises what the writer raises.
    """
    queue, added, taken = deque[Chunk](), asyncio.Event(), asyncio.Event()

    async def fewer(limit: int) -> None:
        while len(queue) >= limit:
            taken.clear()
            await taken.wait()

    async def write() -> None:
        while True:
            async with aclosing(begin()) as chunks:
                async for chunk in chunks:
                    queue.append(chunk)
                    added.set()
                    try:
                        async with asyncio.timeout(STALL_SECONDS):
                            await fewer(QUEUE)
                    except TimeoutError:
                        break
                else:
                    return
            await fewer(QUEUE // 2)

    writer = asyncio.create_task(write())
    writer.add_done_callback(lambda _: added.set())
    try:
        while queue or not writer.done():
            added.clear()
            while queue:
                yield queue.popleft()
                taken.set()
            if not writer.done():
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        await added.wait()
                except TimeoutError:
                    yield None
        writer.result()
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
