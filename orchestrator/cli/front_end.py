"""Flags of every command that asks a front end: where it is, and who asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tandem import AsyncClient

ADDRESS = "127.0.0.1:50051"


def _file(help: str, variable: str) -> Any:
    return Annotated[Path | None, typer.Option(help=help, envvar=variable)]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One front end as a client reaches it."""

    address: str = ADDRESS
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token: str | None = None

    def connect(self, retry_seconds: float = 60.0) -> AsyncClient:
        """A client of it; raises Unusable."""
        from tandem import AsyncClient

        return AsyncClient(
            self.address,
            retry_seconds=retry_seconds,
            tls_ca=self.tls_ca,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            token=self.token,
        )


FLAGS = {
    "address": Annotated[str, typer.Option(help="of the client API", envvar="TANDEM_ADDRESS")],
    "tls_ca": _file("PEM file of the CA that signs certificates", "TANDEM_TLS_CA"),
    "tls_cert": _file("PEM file of your certificate", "TANDEM_TLS_CERT"),
    "tls_key": _file("PEM file of its key", "TANDEM_TLS_KEY"),
    "token": Annotated[
        str | None,
        typer.Option(help="your token; better in the environment", envvar="TANDEM_TOKEN"),
    ],
}


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these flags in place of its `front_end`."""
    known = signature(command, eval_str=True)
    own = [each for name, each in known.parameters.items() if name != "front_end"]
    more = own.pop() if own and own[-1].kind is Parameter.VAR_KEYWORD else None
    default = FrontEnd()
    flags = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(default, name), annotation=kind)
        for name, kind in FLAGS.items()
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        front_end = FrontEnd(**{name: given.pop(name) for name in FLAGS})
        command(front_end=front_end, **given)

    own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own]
    parameters = [*own, *flags, *([more] if more else [])]
    call.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call
