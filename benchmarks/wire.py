"""How many bytes the calls of a channel carry: the protobuf payloads, without HTTP/2 framing and
metadata.

Sees the messages that are really sent; changes none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from grpc import aio


@dataclass(slots=True)
class Traffic:
    """Payload sizes of the answered calls of one method, in bytes: up and down."""

    method: str
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what was counted."""
        self.up.clear()
        self.down.clear()


class Meter(aio.UnaryUnaryClientInterceptor):
    """Counts the calls of one method."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def intercept_unary_unary(
        self,
        continuation: Callable[[aio.ClientCallDetails, Any], Awaitable[Any]],
        client_call_details: aio.ClientCallDetails,
        request: Any,
    ) -> Any:
        """Called by gRPC once per call."""
        call = await continuation(client_call_details, request)
        if _name(client_call_details.method) == self._traffic.method:
            response = await call
            self._traffic.up.append(request.ByteSize())
            self._traffic.down.append(response.ByteSize())
        return call


def _name(method: str | bytes) -> str:
    path = method.decode() if isinstance(method, bytes) else method
    return path.rpartition("/")[2]
