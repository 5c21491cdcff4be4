"""Deploys cells on Ray Serve. Uses an existing Ray cluster, or starts a private Ray on loopback.

The launcher's process is Ray's driver. No request passes through the launcher, so cells keep
serving without it and without Ray's control plane, as long as their node runs. The process ends
when the cells are lost for good, so that a supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog

from tandem.orchestrator.config import OrchestratorConfig, check_token_mode
from tandem.orchestrator.control_plane import ControlPlane, listens
from tandem.protos.address import split
from tandem.protos.errors import Unusable
from tandem.protos.service import process
from tandem.protos.service.tasks import first_done, in_daemon
from tandem.protos.transport import rpc
from tandem.protos.transport.health import answers

ROLE, APPLICATION = "orchestrator", "tandem"
TOKEN = secrets.token_hex(32)  # token of the private Ray that this process starts
LOCAL = "local"
STORE_BYTES = 80 << 20  # smallest object store that Ray accepts; nothing is stored
MAX_PROBLEM_LENGTH = 500  # Ray's error messages are cut to this many characters
# attempts to start a cell on a private Ray; another attempt would fail in the same way
MAX_START_ATTEMPTS = 1
POLL_SECONDS = 1.0
MAX_MISSED = 3  # a cell or Ray is lost after this many checks in a row without an answer

log = structlog.get_logger()


def serve(config: OrchestratorConfig) -> None:
    """Run cells on Ray Serve until a signal ends them. Call this function in the main thread.
    Raises Unusable. When all cells are lost for good, the process ends at once with exit code 1,
    because Ray would not shut down cleanly.
    """
    process.raise_on_signals()
    with TemporaryDirectory(prefix="tandem-", ignore_cleanup_errors=True) as folder:
        try:
            with running(config, folder):
                process.raise_on_signals()  # Ray has replaced the signal handlers
                if lost := asyncio.run(_serve(_with_ports(config))):
                    log.error("the cells are lost", problem=lost)
                    shutil.rmtree(folder, ignore_errors=True)
                    _end_ray()
                    os._exit(1)
        finally:
            _end_ray()


def _end_ray() -> None:
    """Kill the processes that a private Ray has left behind, recognized by the token in their
    environment. An agent of Ray that has just started would otherwise try for minutes to reach its
    node.
    """
    mark = f"RAY_AUTH_TOKEN={TOKEN}".encode()
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            marked = mark in (each / "environ").read_bytes().split(b"\0")
            if marked and int(each.name) != os.getpid():
                os.kill(int(each.name), signal.SIGKILL)


async def _serve(config: OrchestratorConfig) -> str:
    """Run cells until a signal arrives or the cells are lost for good. Returns the reason why the
    cells are lost, or an empty string after a signal.
    """
    async with process.parent_watched():
        ray = ControlPlane(local=config.ray_address == LOCAL)
        deployed = asyncio.create_task(_deployed(config))
        gone = asyncio.create_task(ray.until_gone(POLL_SECONDS, MAX_MISSED))
        await asyncio.wait((deployed, gone), return_when=asyncio.FIRST_COMPLETED)
        if not deployed.done():  # a deployment on a lost Ray would never finish
            return "Ray was lost before its cells served"
        gone.cancel()
        first, *more = deployed.result()
        stop = process.stop_signals()
        for each in more:
            process.announce("cell", role=ROLE, **each)
        if "http" in first:
            process.announce("http", role=ROLE, address=first["http"])
        process.announce("serving", role=ROLE, address=first["address"], metrics=first["metrics"])
        lost = asyncio.create_task(_lost(config, ray, first["address"]))
        stopped = asyncio.create_task(stop.get())
        await asyncio.wait((lost, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            return "a cell does not answer any more, and Ray cannot replace it"
        lost.cancel()
        await first_done(_removed(config), stop.get())
        return ""


@contextmanager
def running(config: OrchestratorConfig, folder: str) -> Iterator[None]:
    """Join a Ray cluster inside this context, or run a small private Ray on loopback that writes
    only to `folder`. Raises Unusable.

    Enter the context in the main thread before gRPC is used, because Ray starts processes and sets
    signal handlers.
    """
    address, private = config.ray_address, config.ray_address == LOCAL
    if private:
        os.environ |= private_environment()
    else:
        _check_address(address)
    # Ray reads these variables when it is imported. A lost control plane must not end cells,
    # because cells need no control plane to answer requests.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
    # Ray must not merge repeated log lines, because each line is an event
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    import ray

    limits: dict[str, Any] = {
        "num_cpus": config.cells,
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
        "_temp_dir": folder,
    }
    try:
        ray.init(address, logging_level=logging.WARNING, **(limits if private else {}))
    except Exception as error:  # Ray may raise anything
        what = "the private Ray did not start" if private else f"cannot join Ray at {address}"
        raise Unusable(f"{what}: {_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def private_environment() -> dict[str, str]:
    """Return the environment variables of a private Ray on loopback, which Ray reads on import."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # puts every socket on loopback
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,  # else Ray writes a token to the home directory
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",  # by default, cells would have a lower CPU priority than models
    }


async def _deployed(config: OrchestratorConfig) -> list[dict[str, str]]:
    """Start the cells, and return their addresses, sorted by host and port. Raises Unusable."""
    from ray import serve
    from ray.serve.schema import LoggingConfig

    from tandem.orchestrator import cells

    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    options: dict[str, Any] = {"num_replicas": config.cells, "logging_config": quiet}
    if config.ray_address == LOCAL:
        options["max_constructor_retry_count"] = MAX_START_ATTEMPTS
    logging.getLogger("ray.serve").setLevel(logging.WARNING)

    def deploy() -> Any:
        serve.start(proxy_location="Disabled", logging_config=quiet)
        # this process has already read the settings file
        settings = config.model_dump(exclude_unset=True, exclude={"config"})
        application = cells.deployment(settings, **options)
        return serve.run(application, name=APPLICATION, route_prefix=None)

    try:
        handle = await in_daemon(deploy)
        found = await handle.broadcast("addresses").results_async()
        return sorted(found, key=lambda each: (split(each["address"]), each["metrics"]))
    except Exception as error:  # Serve may raise anything
        raise Unusable(_line(error, await asyncio.to_thread(_reported))) from None


def _reported() -> str:
    """Return Serve's messages about the cells, such as the traceback of a failed start."""
    from ray import serve

    with suppress(Exception):  # Serve may raise anything
        application = serve.status().applications[APPLICATION]
        return "\n".join(each.message for each in application.deployments.values())
    return ""


async def _removed(config: OrchestratorConfig) -> None:
    """Remove the cells once running requests have finished. Errors of Ray are ignored."""
    from ray import serve

    from tandem.orchestrator import cells

    with suppress(Exception):  # Serve may raise anything, also a timeout
        async with asyncio.timeout(
            sum(getattr(config, name) for name in cells.STOPPING) + 2 * cells.STOP_SECONDS
        ):
            await in_daemon(lambda: serve.delete(APPLICATION))


async def _lost(config: OrchestratorConfig, ray: ControlPlane, address: str) -> None:
    """Wait until neither the cell at `address` nor Ray's control plane responds. As long as the
    control plane runs, Serve replaces a lost cell.
    """
    missed = 0
    async with rpc.connect(address, config.tls) as channel:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            missed = 0 if await answers(channel, POLL_SECONDS) else missed + 1
            if missed >= MAX_MISSED and not await ray.listens():
                return


def _with_ports(config: OrchestratorConfig) -> OrchestratorConfig:
    """With a private Ray, replace port 0 by a free port, so that a restarted cell reuses it."""
    if config.ray_address != LOCAL:
        return config
    names = "port", "http_port", "certificate_port", "metrics_port"
    free = {name: rpc.free_port(config.host) for name in names if getattr(config, name) == 0}
    return config.model_copy(update=free)


def _line(error: Exception, more: str = "") -> str:
    """Return the message of the last Tandem error that `error` or `more` quotes. If they quote no
    Tandem error, return the text of `error` in one line.
    """
    text = str(error)
    found = re.findall(r"tandem\.protos\.errors\.\w+: (.+)", f"{text}\n{more}")
    return found[-1] if found else " ".join(text.split())[:MAX_PROBLEM_LENGTH] or repr(error)


def _check_address(address: str) -> None:
    """Raise Unusable if the cluster does not answer, or if anyone who can reach it may run programs
    on it.
    """
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    check_token_mode(found[1] if found else address)
    # Ray itself would try to connect for minutes
    if found and not listens(f"{found[1]}:{found[2]}"):
        raise Unusable(f"cannot join Ray at {address}: it does not answer")
