"""If a background task fails, its scope raises the error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tandem.protos.service.tasks import background, first_done, in_daemon
from tests.waiting import LIMIT


async def fail() -> None:
    raise LookupError("a bug")


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_that_fails_cancels_its_scope_which_raises_its_error() -> None:
    with pytest.raises(LookupError, match="a bug"):
        async with background(for_ever(), fail()):
            await for_ever()


async def test_the_tasks_end_with_the_scope_and_its_error_is_its_own() -> None:
    with pytest.raises(KeyError):
        async with background(for_ever()) as tasks:
            raise KeyError("of the scope")
    assert [task.cancelled() for task in tasks] == [True]


async def test_the_first_that_ends_ends_all_and_the_first_error_is_raised() -> None:
    late: list[int] = []

    async def clean_up() -> None:
        try:
            await for_ever()
        finally:
            late.append(1)

    await first_done(asyncio.sleep(0), clean_up())
    assert late == [1]
    with pytest.raises(LookupError):
        await first_done(fail(), clean_up())


async def test_who_is_cancelled_cancels_the_tasks() -> None:
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()
        await for_ever()

    task = asyncio.create_task(first_done(begin()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("run", [background, first_done])
async def test_a_failure_hides_no_cancellation(run: Callable[..., Any]) -> None:
    """A task that swallowed its cancellation and tried again would never end."""
    begun = asyncio.Event()

    async def failing() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it is cancelled")

    async def again_and_again() -> None:
        while True:
            try:
                if run is first_done:
                    await first_done(failing())
                else:
                    async with background(failing()):
                        await asyncio.Event().wait()
            except ValueError:
                begun.clear()

    task = asyncio.create_task(again_and_again())
    await begun.wait()
    task.cancel()
    await asyncio.wait((task,), timeout=LIMIT)
    ended = task.cancelled()
    task.cancel()
    assert ended


async def test_in_daemon_returns_what_work_returns_and_raises_what_it_raises() -> None:
    def fail() -> None:
        raise ValueError("its own")

    assert await in_daemon(lambda: threading.current_thread().daemon)
    with pytest.raises(ValueError, match="its own"):
        await in_daemon(fail)
