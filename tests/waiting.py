"""Wait for an event. The only limit detects that an event never came; it says nothing about
speed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

LIMIT = 120.0  # seconds after which a test counts as hanging
PAUSE = 0.01  # seconds between two reads of a state that sends no event

T = TypeVar("T")


async def until(state: Callable[[], T | Awaitable[T]], what: str = "") -> T:
    """Return the first true value of `state`, a function or a coroutine function; raise
    AssertionError with the last value if it stays false.
    """
    seen: T | None = None
    try:
        async with asyncio.timeout(LIMIT):
            while True:
                value = state()
                seen = await value if inspect.isawaitable(value) else value
                if seen:
                    return seen
                await asyncio.sleep(PAUSE)
    except TimeoutError:
        raise AssertionError(f"never happened: {what or state}; last seen: {seen!r}") from None


def wait_until(state: Callable[[], T], what: str = "") -> T:
    """Do the same for a test without an event loop."""
    end = time.monotonic() + LIMIT
    while not (value := state()):
        assert time.monotonic() < end, f"never happened: {what or state}; last seen: {value!r}"
        time.sleep(PAUSE)
    return value
