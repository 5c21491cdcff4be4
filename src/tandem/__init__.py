"""Speculative decoding as services. The packages are the folders at the top of the repository,
linked here so that they are installed under one name; `tandem.v1` are the gRPC stubs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.client import AsyncClient, Client
    from tandem.protos.errors import TandemError

__all__ = ["AsyncClient", "Client", "TandemError"]


def __getattr__(name: str) -> Any:
    """The client, loaded on first use: a model service has no use for it."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "tandem.protos.errors" if name == "TandemError" else "tandem.client"
    return getattr(import_module(home), name)
