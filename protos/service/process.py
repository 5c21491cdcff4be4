"""Logs and signals of a service's process, and its announcements on standard output.

`tandem up` reads the announcements of the services it started; people read them in a terminal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Never

from tandem.protos.errors import TandemError

STOPPING = (signal.SIGTERM, signal.SIGINT)
# environment variable that makes the process stop when its standard input closes, so that it does
# not outlive its parent
CHILD = "TANDEM_CHILD"


def configure_logging(level: str, form: str | None = None) -> None:
    """Make log events go to standard error, with the id of the current request if there is one. The
    form `json` writes JSON lines, and `console` writes lines for people. The default is `console`
    in a terminal and `json` elsewhere.
    """
    import structlog

    terminal = sys.stderr.isatty()
    if form == "console" or (form is None and terminal):
        # tracebacks are shown without local variables, which may contain a prompt
        plain = structlog.dev.plain_traceback
        shown: list[Any] = [
            structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=plain)
        ]
    else:
        shown = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *shown,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def announce(event: str, **fields: str | int) -> None:
    """Write an event as a JSON line to standard output."""
    print(json.dumps({"event": event, **fields}), flush=True)


def announcement(line: bytes) -> dict[str, str] | None:
    """Return the event that a line announces, or None if the line is no announcement."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def refuse(role: str, problem: TandemError) -> Never:
    """End the process with exit code 1. The reason is announced to the parent process if there
    is one, and otherwise written to standard error.
    """
    if os.environ.get(CHILD):
        announce("failed", role=role, problem=str(problem))
    else:
        print(f"error: {problem}", file=sys.stderr, flush=True)
    sys.exit(1)


def raise_on_signals() -> None:
    """Make SIGTERM and Ctrl-C raise SystemExit with the usual exit code, so that cleanups run."""

    def unwind(number: int, frame: object) -> Never:
        for each in STOPPING:
            signal.signal(each, signal.SIG_IGN)  # a second signal would interrupt the unwinding
        raise SystemExit(128 + number)

    for number in STOPPING:
        signal.signal(number, unwind)


@asynccontextmanager
async def parent_watched() -> AsyncIterator[None]:
    """Context manager that stops this process at once, by sending it SIGTERM twice, if the parent
    process ends. Only a process with the variable TANDEM_CHILD watches its parent.
    """
    if not os.environ.get(CHILD):
        yield
        return
    async with standard_input() as reader:
        parent = asyncio.create_task(reader.read())
        parent.add_done_callback(_end)
        try:
            yield
        finally:
            parent.cancel()


@asynccontextmanager
async def standard_input() -> AsyncIterator[asyncio.StreamReader]:
    """Context manager that yields an asynchronous reader of standard input."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    try:
        yield reader
    finally:
        transport.close()


def _end(parent: asyncio.Task[bytes]) -> None:
    if not parent.cancelled():
        for _ in range(2):  # the second signal ends the process at once
            signal.raise_signal(signal.SIGTERM)


def stop_signals() -> asyncio.Queue[int]:
    """From now on, let SIGTERM and Ctrl-C only put their signal numbers into the returned queue."""
    loop = asyncio.get_running_loop()
    numbers: asyncio.Queue[int] = asyncio.Queue()
    for number in STOPPING:
        loop.add_signal_handler(number, numbers.put_nowait, number)
    return numbers


async def until_cancelled() -> None:
    """Wait until cancelled, then return normally: stopping a running service is no error."""
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()


async def until_stopped(service: Coroutine[Any, Any, None]) -> int:
    """Run a service until it ends by itself or a signal stops it. Returns the exit code, which is 0
    or 128 plus the number of the signal. Raises the service's errors.
    """
    serving = asyncio.create_task(service)
    stop = asyncio.create_task(stop_signals().get())
    await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
    serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        return 128 + stop.result()
    finally:
        stop.cancel()
    return 0
