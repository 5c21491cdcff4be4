"""Guards decide who may call which methods. The guard of a port checks every call, and lets all
health checks pass.
"""

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
    """Decides who may call the methods of one port."""

    def check(self, method: str, context: Context) -> None:
        """Raise Unauthenticated or PermissionDenied if the caller may not call a method. `method`
        is the full name of the method.
        """


class AllowAll:
    """A guard that allows every caller to call every method."""

    def check(self, method: str, context: Context) -> None:
        """Allow the call."""


class Peers:
    """A guard that admits callers whose certificate has one of the given common names."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def check(self, method: str, context: Context) -> None:
        """Raise Unauthenticated if the caller has no certificate, or PermissionDenied if its common
        name is not admitted.
        """
        if method.startswith(HEALTH):
            return
        name = common_name(context)
        if not name:
            raise Unauthenticated("a client certificate is needed here")
        if name not in self._names:
            raise PermissionDenied(
                f"a caller with the certificate {name!r} may not call this service"
            )


def metadata_value(details: Any, name: str) -> str:
    """Return the value of a key in the metadata of a call; empty if the key is missing."""
    return str(dict(details or ()).get(name, ""))


def same(given: str, expected: str) -> bool:
    """Tell whether two secrets are equal, with a comparison in constant time."""
    return secrets.compare_digest(given.encode(), expected.encode())


def common_name(context: Context) -> str:
    """Return the common name of the caller's certificate, which the handshake has verified; empty
    if the caller has no certificate.
    """
    names = context.auth_context().get("x509_common_name", ())
    return next((name.decode("utf-8", "replace") for name in names), "")


def bearer_token(context: Context) -> str:
    """Return the token that the caller has sent in `authorization: Bearer ...`; empty if none."""
    return token_of(metadata_value(context.invocation_metadata(), AUTHORIZATION))


def token_of(authorization: str) -> str:
    """Return the token of a header value `Bearer TOKEN`; empty if it has another form."""
    if authorization.lower().startswith(BEARER):
        return authorization[len(BEARER) :].strip()
    return ""
