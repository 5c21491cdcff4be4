"""Cells on Ray Serve. Each replica of the Serve deployment runs one orchestrator. By default, each
orchestrator listens on its own ports.

Serve starts, replaces, scales and drains cells; no request passes through Serve.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any, TypeAlias

import structlog
from prometheus_client import REGISTRY
from ray import serve
from ray.serve.config import AutoscalingContext
from ray.util import get_node_ip_address

from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig, check_token_mode
from tandem.orchestrator.page.served import LATE_SECONDS, add_targets
from tandem.protos.address import joined
from tandem.protos.errors import Unusable
from tandem.protos.service import command, process, tracing
from tandem.protos.service.about import report_build
from tandem.protos.service.config import completed
from tandem.protos.service.drain import Drain
from tandem.protos.service.pages import Pages
from tandem.protos.transport import rpc

ROLE = "orchestrator"
MAX_CELLS_PER_NODE = 16  # maximum number of cells per node; each takes the next free port
FILLED_METRIC, TARGET_FILLED = "filled", 0.75  # desired share of request slots in use
STOP_SECONDS = 15.0  # seconds to stop a cell, in addition to the settings in STOPPING
UNSPECIFIED_HOST = re.compile(r"(?<=//)(0\.0\.0\.0|\[::\])(?=:)")
STOPPING = "lame_duck_seconds", "drain_seconds"
DEPLOYMENT: dict[str, Any] = {
    "ray_actor_options": {"num_cpus": 1},
    "health_check_period_s": 2,
    "health_check_timeout_s": 5,  # a cell whose event loop blocks for this long is replaced
}

Settings: TypeAlias = Mapping[str, Any]
log = structlog.get_logger()


class Cell:
    """A replica of the deployment: an orchestrator on the event loop that Serve provides."""

    _serving: asyncio.Task[None] | None = None

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # Serve awaits it
        """Start an orchestrator with `settings`, which override the environment and the settings
        file of the node. Returns when the port is open; raises Unusable or IncompatibleModels.
        """
        check_token_mode(get_node_ip_address())
        config = await asyncio.to_thread(completed, OrchestratorConfig, ROLE, settings)
        process.configure_logging(config.log_level, config.log_format)
        self._config = config
        self._drain = Drain(config.drain_seconds)
        self._addresses: dict[str, str] = {}
        self._stop = asyncio.Event()
        serves = asyncio.Event()
        self._serving = asyncio.create_task(self._serve(serves))
        waiting = asyncio.create_task(serves.wait())
        await asyncio.wait((self._serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            await self._serving

    async def _serve(self, serves: asyncio.Event) -> None:
        pages = Pages(REGISTRY)
        report_build(REGISTRY)

        def announce(event: str, role: str, address: str) -> None:
            self._addresses[event] = address

        with (
            tracing.exporting(self._config.otlp_endpoint, f"tandem-{ROLE}"),
            on_free_ports(self._config, pages) as (config, metrics),
        ):
            serving = server.serving(config, REGISTRY, self._drain, pages, announce)
            async with serving as address:
                self._addresses |= {"address": address, "metrics": metrics}
                add_targets(pages, metrics_of_all)
                log.info("a cell serves", **self._addresses)
                serves.set()
                await self._stop.wait()

    def addresses(self) -> dict[str, str]:
        """Return the cell's addresses. `address` is the address of the client API, and `metrics` is
        the URL of the metrics. `http` is the URL of the HTTP API, and is missing if the cell does
        not serve this API.
        """
        return self._addresses

    def metrics(self) -> str:
        """Return the URL of the cell's metrics. An unspecified host, such as 0.0.0.0, is replaced
        by the node's address, at which other nodes can reach the cell.
        """
        node = joined(get_node_ip_address(), 0).removesuffix(":0")
        return UNSPECIFIED_HOST.sub(node, self._addresses["metrics"])

    def check_health(self) -> None:
        """Raise RuntimeError if the cell has ended. Serve calls this method on the event loop of
        the cell, and replaces the cell if the method raises or does not return. A lost verifier is
        no reason to replace the cell, because a new cell would have no verifier either. The gRPC
        health check at the cell's port reports the lost verifier instead.
        """
        if self._serving is None or self._serving.done():
            raise RuntimeError("the cell has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the number of running and waiting requests, divided by the number of requests that
        the cell can run at once. Serve calls this method periodically.
        """
        states = "running", "waiting"
        counts = (REGISTRY.get_sample_value(f"tandem_num_requests_{state}") for state in states)
        return {FILLED_METRIC: sum(count or 0 for count in counts) / self._config.max_running}

    async def __del__(self) -> None:
        """Stop the cell after its running requests have finished. Serve calls this method when it
        removes the cell.
        """
        if self._serving is not None:
            self._stop.set()
            await asyncio.wait((self._serving,))


def policy(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return the desired number of cells. With this number, the current requests fill at most the
    fraction TARGET_FILLED of all request slots. Serve then applies its own limits and delays to
    this number.
    """
    filled = (context.aggregated_metrics or {}).get(FILLED_METRIC, {})
    return math.ceil(sum(filled.values()) / TARGET_FILLED), {}


def app(args: dict[str, Any]) -> serve.Application:
    """Build the Ray Serve application. A Serve config names this function as its `import_path`. The
    `args` of the config are settings of the orchestrator. Raises Unusable for an unknown setting.
    The values of the settings are checked later, when the cells start.
    """
    return deployment(args, autoscaling_config={"policy": {"policy_function": policy}})


def deployment(args: Settings, **options: Any) -> serve.Application:
    """Build the Ray Serve application. `args` are settings of the orchestrator, and `options` are
    options of the Serve deployment.
    """
    if unknown := args.keys() - OrchestratorConfig.model_fields.keys():
        raise Unusable(f"{', '.join(sorted(unknown))}: no such setting of the orchestrator")
    fields = OrchestratorConfig.model_fields
    seconds = sum(float(args.get(name, fields[name].default)) for name in STOPPING)
    make: Callable[[type], serve.Deployment] = serve.deployment(
        name=Cell.__name__,
        graceful_shutdown_timeout_s=seconds + STOP_SECONDS,
        **DEPLOYMENT,
        **options,
    )
    return make(Cell).bind(dict(args))


def metrics_of_all() -> list[str]:
    """Return the URLs of the metrics pages of all cells; raises TimeoutError. Call this function in
    a worker thread, because it blocks.
    """
    try:
        cells = serve.get_deployment_handle(Cell.__name__, serve.get_replica_context().app_name)
        return sorted(cells.broadcast(Cell.metrics.__name__).results(timeout_s=LATE_SECONDS))
    # Serve may raise anything while a cell or Ray's control plane is lost
    except Exception as error:
        raise TimeoutError("the addresses of the cells are unknown at the moment") from error


@contextmanager
def on_free_ports(
    config: OrchestratorConfig, pages: Pages
) -> Iterator[tuple[OrchestratorConfig, str]]:
    """Choose the cell's ports, and serve the cell's status and metrics pages inside this context.
    Yields the settings with the chosen ports, and the URL of the pages. To avoid ports that are in
    use, one offset is added to every port that cells do not share. The offset is the smallest at
    which all shifted ports are free. Cells of the same node therefore have different ports. Port
    numbers 0 and None are not changed. Raises Unusable if no offset gives free ports.
    """
    own = () if config.share_ports else ("port", "http_port", "certificate_port")
    wanted = {name: port for name in (*own, "metrics_port") if (port := getattr(config, name))}
    with ExitStack() as scope:
        for number in range(MAX_CELLS_PER_NODE):
            ports = {name: port + number for name, port in wanted.items()}
            with suppress(Unusable) if number < MAX_CELLS_PER_NODE - 1 else nullcontext():
                for name in filter(ports.get, own):
                    rpc.free_port(config.host, ports[name])
                moved = config.model_copy(update=ports)
                metrics = scope.enter_context(command.served(moved, pages))
                break
        yield moved, metrics
