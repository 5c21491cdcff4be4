"""Running as a process: logs, the metrics port, signals, and the line "I serve".

`tandem up` reads the announcements of the services it started; people read them in a terminal.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

from protos.errors import TandemError, Unusable

LEASH = "TANDEM_LEASH"  # set: stop when standard input closes, so that nobody outlives the parent


def configure_logging(level: str) -> None:
    """JSON lines on standard error, one event each, with the request id where there is one."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def announce(event: str, **fields: str | int) -> None:
    """Tell the parent, or a person, one fact as a JSON line on standard output."""
    print(json.dumps({"event": event, **fields}), flush=True)


def announcement(line: bytes) -> dict[str, str] | None:
    """The fact that a line announces, or None if it is something else."""
    try:
        fact = json.loads(line)
    except ValueError:
        return None
    return fact if isinstance(fact, dict) and {"event", "role"} <= fact.keys() else None


@contextmanager
def metrics_served(host: str, port: int, registry: CollectorRegistry = REGISTRY) -> Iterator[int]:
    """Serve `/metrics` while the scope lasts; yields the port. Port 0 takes a free one. Raises
    Unusable.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Unusable(
            f"metrics port {port} on {host} cannot be opened: {error.strerror}"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def told_to_stop() -> None:
    """Return on SIGTERM, on Ctrl-C, or, on a leash, when standard input closes."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(LEASH):
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        leash = asyncio.ensure_future(reader.read())
        leash.add_done_callback(lambda _: stop.set())
    await stop.wait()


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


async def until_stopped(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until it ends by itself or somebody tells us to stop; raises what it raises."""
    serving = asyncio.create_task(service)
    stop = asyncio.create_task(told_to_stop())
    await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
    for task in (serving, stop):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await serving


def run(service: Coroutine[Any, Any, None]) -> None:
    """Run a service until told to stop; what it cannot start with is one line and exit code 1."""
    try:
        asyncio.run(until_stopped(service))
    except TandemError as error:
        sys.exit(f"error: {error}")
