"""Runs a service until it stops, with settings from its command line, which has a flag for every
setting.

Modules that take long to import are imported only after the arguments have been checked.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from importlib import import_module
from typing import TypeVar

from tandem.protos.errors import TandemError, Unusable
from tandem.protos.service import process, tracing
from tandem.protos.service.about import report_build
from tandem.protos.service.config import ServiceConfig, configured
from tandem.protos.service.drain import Drain
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.tls import server_context

Config = TypeVar("Config", bound=ServiceConfig)
Serve = Callable[..., AbstractAsyncContextManager[str]]


def command(role: str, kind: type[Config], module: str) -> None:
    """Run a service with the settings of the command line. The function `serving` of `module`
    starts the service. If the service cannot start, the process prints one line and ends with exit
    code 1.
    """
    start(role, kind, lambda config: serve(role, config, module))


def start(role: str, kind: type[Config], work: Callable[[Config], None]) -> None:
    """Read the command line, and call `work` with the settings. If the service cannot start, the
    process prints one line and ends with exit code 1.
    """
    # until the service has started, Ctrl-C ends the process immediately
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        config = configured(kind, role, sys.argv[1:])
        process.configure_logging(config.log_level, config.log_format)
        config.prepare()
        process.announce("loading", role=role, model=str(config.folder))
        work(config)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("tandem"):
            raise
        install = f"pip install 'tandem-serving[{role}]'"
        process.refuse(role, Unusable(f"{error.name} is not installed: {install}"))
    except TandemError as error:
        process.refuse(role, error)


def serve(role: str, config: ServiceConfig, module: str) -> None:
    """Run a service with these settings. The function `serving` of `module` starts the service."""
    serving = import_module(module).serving
    with tracing.exporting(config.otlp_endpoint, f"tandem-{role}"):
        asyncio.run(run(role, config, serving))


async def run(role: str, config: ServiceConfig, serve: Serve) -> None:
    """Run a service until it is stopped: the first signal makes it drain, and the second ends it at
    once. While the service is still starting, the first signal ends the process at once.
    """
    from prometheus_client import REGISTRY

    drain, pages = Drain(config.drain_seconds), Pages(REGISTRY)
    report_build(REGISTRY)
    serving = serve(config, REGISTRY, drain, pages)
    with served(config, pages) as metrics:
        async with process.parent_watched(), serving as address:
            # handle signals before the announcement: its reader may send a signal immediately
            stop = process.stop_signals()
            process.announce("serving", role=role, address=address, metrics=metrics)
            await stop.get()
            again = asyncio.create_task(stop.get())
            again.add_done_callback(lambda _: drain.cut())


@contextmanager
def served(config: ServiceConfig, pages: Pages) -> Iterator[str]:
    """Context manager that serves a service's HTTP pages; yields their URL."""
    host = config.metrics_host or config.host
    asked = config.tls if config.metrics_tls else None
    # the handshake also accepts clients without a certificate; `pages` decides for each page
    # whether a certificate is required
    context = server_context(asked, ssl.CERT_OPTIONAL) if asked else None
    with pages_served(host, config.metrics_port, pages, context) as address:
        yield f"{'https' if context else 'http'}://{address}"
