"""The command line that drafter and verifier share.

Turns flags into a configuration and runs the service until it is told to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated

import transformers
import typer
from prometheus_client import REGISTRY, CollectorRegistry

from engine.config import ModelServiceConfig
from protos import process
from protos.errors import TandemError

Serve = Callable[[ModelServiceConfig, CollectorRegistry], AbstractAsyncContextManager[str]]


def command(role: str, serve: Serve) -> None:
    """Run `python -m <role>_service`."""

    def main(
        model: Annotated[Path | None, typer.Option(help="Hugging Face model directory")] = None,
        host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
        port: Annotated[int | None, typer.Option(help="0 takes a free port")] = None,
        metrics_port: Annotated[
            int | None, typer.Option(help="Prometheus port, 0 takes a free one")
        ] = None,
        dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16")] = None,
        device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
        threads: Annotated[int | None, typer.Option(help="CPU threads of the model")] = None,
        max_sessions: Annotated[int | None, typer.Option(help="sessions that fit")] = None,
        max_batch_sessions: Annotated[
            int | None, typer.Option(help="sessions in one forward pass")
        ] = None,
        context_length: Annotated[
            int | None, typer.Option(help="tokens per session, at most the model's")
        ] = None,
        session_ttl: Annotated[
            float | None, typer.Option(help="seconds until an idle session is reclaimed")
        ] = None,
        log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
    ) -> None:
        flags = {name: value for name, value in locals().items() if name not in ("role", "serve")}
        try:
            config = process.configured(ModelServiceConfig, role, flags)
        except TandemError as error:
            raise SystemExit(f"error: {error}") from error
        process.configure_logging(config.log_level)
        transformers.utils.logging.disable_progress_bar()
        process.run(run(role, config, serve))

    main.__doc__ = f"Start a {role}."
    typer.run(main)


async def run(role: str, config: ModelServiceConfig, serve: Serve) -> None:
    """Serve until cancelled."""
    process.announce("loading", role=role, model=str(config.model))
    with process.metrics_served(config.host, config.metrics_port) as metrics_port:
        async with serve(config, REGISTRY) as address:
            process.announce(
                "serving", role=role, address=address, metrics=f"{config.host}:{metrics_port}"
            )
            await process.forever()
