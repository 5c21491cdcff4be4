"""Runs background tasks. If a task fails, its error is raised in the context manager that started
it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import TimeoutError as Late
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def background(*work: Coroutine[Any, Any, object]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Context manager that runs coroutines as tasks and cancels them at the end; yields the tasks.
    If a coroutine fails, the body is cancelled, and the coroutine's error is raised.

    The context is an `asyncio.TaskGroup` that raises an error without an ExceptionGroup around it.
    If the surrounding task was cancelled, CancelledError is raised even if a coroutine failed:
    otherwise code that catches the coroutine's error would continue in spite of the cancellation.
    """
    raised: BaseException | None = None
    cancelled = _cancelled()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            try:
                yield tasks
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                raised = error
            finally:
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as failures:
        if _cancelled() > cancelled:
            raise asyncio.CancelledError from failures.exceptions[0]
        raise failures.exceptions[0] from raised
    if raised:
        raise raised


def _cancelled() -> int:
    """Return how many requests to cancel the current task are pending."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


async def first_done(*work: Coroutine[Any, Any, object]) -> None:
    """Run coroutines until one ends, then cancel the others. If a coroutine fails, its error is
    raised.
    """
    async with background(*work) as tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def in_daemon(work: Callable[[], T]) -> T:
    """Call a function in a daemon thread, and return its result or raise its error. Unlike other
    threads, a daemon thread does not delay the exit of a process that a signal ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if done.done() else set_it())

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            settle(partial(done.set_exception, error))
        else:
            settle(partial(done.set_result, result))

    threading.Thread(target=run, daemon=True).start()
    return await done


def from_thread(
    loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]], seconds: float
) -> T:
    """Run a coroutine on the event loop of another thread, and return its result or raise its
    error. Raises TimeoutError if the loop is closed, or after `seconds` seconds.
    """
    coroutine = work()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:  # the loop is closed, because the process ends
        coroutine.close()
        raise TimeoutError from None
    try:
        return future.result(seconds)
    except Late:
        future.cancel()
        raise TimeoutError from None
