"""Round workers as Ray actors: Ray places and restarts them, and never carries a token.

Each worker opens a gRPC port of its own on its node and reports it in an actor call, which Ray
queues until the actor runs again: supervision without polling.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import structlog

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.registration import Access
from tandem.orchestrator.workers import local, worker
from tandem.orchestrator.workers.supervisor import ReserveSupervisor
from tandem.protos.address import is_loopback, unbracketed
from tandem.protos.errors import Unusable
from tandem.protos.service import process, tracing
from tandem.protos.transport import rpc
from tandem.protos.types import ModelDescription

STORE_BYTES = 80 << 20  # the smallest that Ray takes; nothing is stored
LOCAL = "local"
CONNECT_SECONDS = 5.0

log = structlog.get_logger()


class RoundWorker:
    """The actor: a round worker's server on Ray's own event loop."""

    def __init__(
        self, access: Access, target: ModelDescription, otlp_endpoint: str = "", log_level: str = ""
    ) -> None:
        """Its logs stay as they are in this process without a `log_level`."""
        self._access, self._target, self._otlp_endpoint = access, target, otlp_endpoint
        if log_level:
            process.configure_logging(log_level, "json")
        self._draining = asyncio.Event()
        self._address: asyncio.Future[str] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def endpoint(self) -> str:
        """Its address; starts the server at the first call after every restart of the actor."""
        if self._address is None or (self._address.done() and self._address.exception()):
            self._address = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._address))
        return await asyncio.shield(self._address)

    async def _serve(self, address: asyncio.Future[str]) -> None:
        """Serve until it is drained, in a task that lasts as long: what fails in it later ends the
        process, and Ray starts another.
        """
        import ray

        try:
            host = ray.util.get_node_ip_address()
            with tracing.exporting(self._otlp_endpoint, "tandem-round-worker"):
                async with worker.serving(host, self._access, self._target) as found:
                    address.set_result(found)
                    await self._draining.wait()
        except Exception as error:
            if address.done():
                log.error("a round worker failed", exc_info=error)
                os._exit(1)  # an exit in order would be the last
            address.set_exception(error)

    async def drain(self) -> None:
        """Let running requests finish, then stop."""
        self._draining.set()
        if self._serving:
            await self._serving


class RayWorkers:
    """Actors that Ray restarts without limit."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors

    async def endpoint(self, index: int) -> str:
        """The address of worker `index`; Ray answers when the actor runs."""
        return str(await self._actors[index].endpoint.remote())

    def restart(self, index: int) -> None:
        """Have Ray restart a worker that does not answer."""
        import ray

        ray.kill(self._actors[index], no_restart=False)

    async def drain(self) -> None:
        """Drain all workers that can be reached."""
        draining = (actor.drain.remote() for actor in self._actors)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * rpc.DRAIN_SECONDS):
                await asyncio.gather(*draining, return_exceptions=True)


@contextmanager
def running(address: str, workers: int, folder: str) -> Iterator[None]:
    """Ray while the scope lasts: a cluster joined, or a small private one on loopback, which writes
    to a folder alone.

    Enter it in the main thread, before gRPC is used: Ray starts processes and sets signal handlers.
    """
    private = address == LOCAL
    if not private:
        _check_address(address)
    else:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
            "0"  # read at import: every socket on loopback
        )
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(
            32
        )  # else Ray writes one into the home directory
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # else round workers give way to models
    # read at import: a lost control plane must not end round workers, which stream without it
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
    import ray

    limits: dict[str, Any] = {
        "num_cpus": workers,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": folder,
    }
    ray.init(
        address,
        log_to_driver=False,
        logging_level=logging.WARNING,
        **(limits if private else {}),
    )
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise Unusable if who reaches the cluster may run programs on it, OSError if nobody does."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    check_token_mode(found[1] if found else address)
    if found:  # Ray itself tries for minutes
        peer = unbracketed(found[1]), int(found[2])
        socket.create_connection(peer, CONNECT_SECONDS).close()


def check_token_mode(host: str) -> None:
    """Raise Unusable for a Ray beyond loopback that asks for no token, as it does by default."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if mode.lower() != "token" and not is_loopback(host):
        problem = f"RAY_AUTH_MODE is {mode or 'not set'}, and Ray at {host} beyond loopback"
        raise Unusable(f"{problem}: who reaches it may run programs on it; set it to token")


def node_host(config: OrchestratorConfig) -> str:
    """This node's address, at which workers reach it; raises Unusable if their ports would be open
    to other machines.
    """
    import ray

    host = str(ray.util.get_node_ip_address())
    if not (config.tls or config.insecure or is_loopback(host)):
        wanted = "tls_cert, tls_key and tls_ca, or insecure"
        raise Unusable(f"round workers listen on {host}, beyond loopback, which needs {wanted}")
    return host


@asynccontextmanager
async def placed(
    config: OrchestratorConfig, access: Access, target: ModelDescription
) -> AsyncIterator[RayWorkers]:
    """Round workers on the running Ray while the scope lasts."""
    import ray

    actor: Any = ray.remote(RoundWorker).options(
        num_cpus=0.1, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD"
    )
    given = access, target, config.otlp_endpoint, config.log_level
    actors = [actor.remote(*given) for _ in range(config.workers)]
    workers = RayWorkers(actors)
    try:
        yield workers
    finally:
        await workers.drain()
        for handle in actors:
            ray.kill(handle)


@asynccontextmanager
async def supervising(
    config: OrchestratorConfig, target: ModelDescription
) -> AsyncIterator[ReserveSupervisor]:
    """Round workers on the Ray of this process while the scope lasts."""
    host = node_host(config)
    async with (
        local.supervising(config, target) as reserve,
        placed(config, reserve.access, target) as workers,
    ):
        yield ReserveSupervisor(workers, config.workers, reserve, host)
