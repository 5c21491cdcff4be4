"""Who may call what: asked before every call of every method but health."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Any, Protocol, TypeAlias

from grpc import aio

from tandem.protos.errors import PermissionDenied, Unauthenticated

HEALTH = "/grpc.health.v1.Health/"
AUTHORIZATION, BEARER = "authorization", "bearer "

Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class Guard(Protocol):
    """Decides for one port."""

    def check(self, method: str, context: Context) -> None:
        """Raise Unauthenticated or PermissionDenied if a method, by its full name, may not be
        called by who calls it.
        """


class Open:
    """Everybody may call everything."""

    def check(self, method: str, context: Context) -> None:
        """It may."""


class Peers:
    """Who has a certificate with one of these common names may call."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def check(self, method: str, context: Context) -> None:
        """As of every guard."""
        if method.startswith(HEALTH):
            return
        name = common_name(context)
        if not name:
            raise Unauthenticated("a client certificate is needed here")
        if name not in self._names:
            raise PermissionDenied(f"the certificate of {name!r} may not call this service")


def metadata_value(details: Any, name: str) -> str:
    """What a call has under a name in its metadata; empty if it has nothing."""
    return str(dict(details or ()).get(name, ""))


def same(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in a time that does not depend on them."""
    return secrets.compare_digest(given.encode(), expected.encode())


def common_name(context: Context) -> str:
    """Of the certificate that the caller has shown, which the handshake has verified; empty without
    one.
    """
    names = context.auth_context().get("x509_common_name", ())
    return next((name.decode("utf-8", "replace") for name in names), "")


def bearer_token(context: Context) -> str:
    """What the caller has sent in `authorization: Bearer ...`; empty if nothing."""
    return token_of(metadata_value(context.invocation_metadata(), AUTHORIZATION))


def token_of(authorization: str) -> str:
    """The token of `Bearer TOKEN`; empty if it is something else."""
    if authorization.lower().startswith(BEARER):
        return authorization[len(BEARER) :].strip()
    return ""
