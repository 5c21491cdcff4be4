"""The command line that drafter and verifier share: one flag per setting.

Turns flags into a configuration and runs the service until it is told to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args

import transformers
import typer
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from engine.config import ModelServiceConfig
from protos import process
from protos.errors import TandemError

Serve = Callable[[ModelServiceConfig, CollectorRegistry], AbstractAsyncContextManager[str]]
SIMPLE = (bool, int, float, Path)  # what a flag can be beside text


def command(role: str, serve: Serve) -> None:
    """Run `python -m <role>_service`."""

    def main(**flags: Any) -> None:
        try:
            config = process.configured(ModelServiceConfig, role, flags)
        except TandemError as error:
            raise SystemExit(f"error: {error}") from error
        process.configure_logging(config.log_level)
        transformers.utils.logging.disable_progress_bar()
        process.run(run(role, config, serve))

    main.__doc__ = f"Start a {role}."
    flags = [_flag(name, field) for name, field in ModelServiceConfig.model_fields.items()]
    main.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    main.__annotations__ = {flag.name: flag.annotation for flag in flags}
    typer.run(main)


def _flag(name: str, field: FieldInfo) -> Parameter:
    """A setting as an option that is None when it is not given: then the environment decides."""
    possible = {field.annotation, *get_args(field.annotation)}
    kind = next((simple for simple in SIMPLE if simple in possible), str)
    default = "" if field.default in (None, PydanticUndefined) else f" ({_shown(field.default)})"
    option = typer.Option(help=f"{field.description}{default}")
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _shown(default: object) -> str:
    return default.human_readable() if isinstance(default, ByteSize) else str(default)


async def run(role: str, config: ModelServiceConfig, serve: Serve) -> None:
    """Serve until cancelled."""
    process.announce("loading", role=role, model=str(config.model))
    with process.metrics_served(config.host, config.metrics_port) as metrics_port:
        async with serve(config, REGISTRY) as address:
            process.announce(
                "serving", role=role, address=address, metrics=f"{config.host}:{metrics_port}"
            )
            await process.forever()
