"""Messages of a call that are passed on as they are: bytes, not decoded and not checked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import grpc
from grpc import aio

from tandem.protos.transport.interceptor import Handler

RawContext: TypeAlias = "aio.ServicerContext[bytes, bytes]"


class RawInterceptor(aio.ServerInterceptor):
    """Calls of one method, by its full name, whose servicer gets and sends bytes."""

    def __init__(self, method: str) -> None:
        self._method = method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC once per call."""
        handler = await continuation(details)
        if handler and handler.stream_stream and details.method == self._method:
            return grpc.stream_stream_rpc_method_handler(handler.stream_stream)
        return handler


async def forward(messages: AsyncIterator[bytes], to: RawContext) -> None:
    """Send what arrives on one call on another, until either ends; one message at a time is held,
    so that a slow reader stops the sender.
    """
    with suppress(aio.BaseError):
        async for message in messages:
            await to.write(message)
