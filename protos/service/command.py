"""A service's command line: one flag per setting, then serve until told to stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer
from prometheus_client import REGISTRY, CollectorRegistry
from pydantic import ByteSize
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from protos.errors import TandemError
from protos.service import process
from protos.service.config import ServiceConfig, configured

Config = TypeVar("Config", bound=ServiceConfig)
SIMPLE = (bool, int, float, Path)  # what a flag can be beside text
Serve = Callable[[Config, CollectorRegistry], AbstractAsyncContextManager[str]]


def command(
    role: str,
    kind: type[Config],
    serve: Serve[Config],
    around: Callable[[Config], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> None:
    """Run a service as its flags say, inside what shall be `around` it."""

    def main(**flags: Any) -> None:
        try:
            config = configured(kind, role, flags)
        except TandemError as error:
            raise SystemExit(f"error: {error}") from error
        process.configure_logging(config.log_level)
        process.announce("loading", role=role, model=str(config.folder))
        with around(config):
            process.run(run(role, config, serve))

    fields = kind.model_fields.items()
    flags = [_flag(*each) for each in sorted(fields, key=lambda each: not each[1].is_required())]
    main.__doc__ = f"Start {'an' if role[0] in 'aeiou' else 'a'} {role}."
    main.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    main.__annotations__ = {flag.name: flag.annotation for flag in flags}
    typer.run(main)


async def run(role: str, config: Config, serve: Serve[Config]) -> None:
    """Serve until cancelled."""
    with process.metrics_served(config.host, config.metrics_port) as metrics_port:
        async with serve(config, REGISTRY) as address:
            metrics = f"{config.host}:{metrics_port}"
            process.announce("serving", role=role, address=address, metrics=metrics)
            await process.forever()


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
