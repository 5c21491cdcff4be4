"""Start the orchestrator: `python -m orchestrator --verifier HOST:PORT --drafter HOST:PORT
--tokenizer DIR`.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import REGISTRY

from orchestrator import cluster
from orchestrator.config import OrchestratorConfig
from orchestrator.server import serving
from protos import process
from protos.errors import TandemError


def main(
    verifier: Annotated[str | None, typer.Option(help="HOST:PORT of the verifier")] = None,
    drafter: Annotated[str | None, typer.Option(help="HOST:PORT of the drafter")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="model directory whose tokenizer is used")
    ] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="of the client API, 0 takes a free one")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Prometheus port, 0 takes a free one")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="round workers")] = None,
    ray: Annotated[
        bool | None, typer.Option(help="round workers as Ray actors, or in this process")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="a cluster to join; local starts one")
    ] = None,
    max_running: Annotated[int | None, typer.Option(help="requests in rounds at once")] = None,
    max_waiting: Annotated[
        int | None, typer.Option(help="requests that may wait for a place")
    ] = None,
    draft_levels: Annotated[
        int | None, typer.Option(help="levels of a draft, 0 decodes plainly")
    ] = None,
    draft_branches: Annotated[
        int | None, typer.Option(help="children per node, 1 drafts chains")
    ] = None,
    draft_nodes: Annotated[int | None, typer.Option(help="nodes of a draft tree")] = None,
    draft_schedule: Annotated[
        str | None, typer.Option(help="goodput, constant or heuristic")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
) -> None:
    """Start the orchestrator: client API, front end and round workers."""
    try:
        config = process.configured(OrchestratorConfig, "orchestrator", dict(locals()))
    except TandemError as error:
        raise SystemExit(f"error: {error}") from error
    process.configure_logging(config.log_level)
    process.announce("loading", role="orchestrator", model=str(config.tokenizer))
    with cluster.running(config.ray_address, config.workers) if config.ray else nullcontext():
        process.run(run(config))


async def run(config: OrchestratorConfig) -> None:
    """Serve until cancelled."""
    with process.metrics_served(config.host, config.metrics_port) as metrics_port:
        async with serving(config, REGISTRY) as address:
            metrics = f"{config.host}:{metrics_port}"
            process.announce("serving", role="orchestrator", address=address, metrics=metrics)
            await process.forever()


if __name__ == "__main__":
    typer.run(main)
