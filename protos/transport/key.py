"""A key in the metadata of every call, for ports that serve one caller alone."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from tandem.protos.transport.guard import HEALTH
from tandem.protos.transport.interceptor import Handler

WORKER_KEY = "x-tandem-worker-key"


def metadata_value(details: Any, name: str) -> str:
    """What a call has under a name in its metadata; empty if it has nothing."""
    return str(dict(details or ()).get(name, ""))


def same(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in a time that does not depend on them."""
    return secrets.compare_digest(given.encode(), expected.encode())


class KeyInterceptor(aio.ServerInterceptor):
    """Refuses callers without the key of a front end: it alone, and its workers, may call."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC once per call; health is for all, as at every port."""
        if details.method.startswith(HEALTH) or same(
            metadata_value(details.invocation_metadata, WORKER_KEY), self._key
        ):
            return await continuation(details)

        async def refuse(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the key of this worker")

        return grpc.unary_unary_rpc_method_handler(refuse)
