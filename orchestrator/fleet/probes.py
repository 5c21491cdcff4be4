"""Probes that ask a drafter or a verifier which model it has and whether it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc

from tandem.protos.errors import Internal, TransportLost
from tandem.protos.transport import status
from tandem.protos.transport.health import is_serving
from tandem.protos.transport.status import is_cancelled
from tandem.protos.types import ModelDescription
from tandem.protos.wire import codec
from tandem.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

Response = TypeVar("Response")


async def answer_of(call: Awaitable[Response]) -> Response:
    """Await a call and return its response; raises the call's failure as a TandemError."""
    try:
        response = await call
    except grpc.aio.AioRpcError as failure:
        raise status.decode(failure) from None
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        raise TransportLost("the channel was closed") from None
    if response is None:
        raise Internal("the answer cannot be decoded")
    return response


class DrafterProbe:
    """Asks a drafter which model it has, and whether it serves."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = drafter_pb2_grpc.DrafterServiceStub(channel)

    async def serving(self, seconds: float) -> bool:
        """Tell whether the drafter reports within `seconds` seconds that it serves."""
        return await is_serving(self._channel, "tandem.v1.DrafterService", seconds)

    async def describe(self, seconds: float) -> ModelDescription:
        """Return the draft model's description; waits up to `seconds` seconds for the drafter."""
        request = drafter_pb2.DescribeDrafterRequest()
        call = self._stub.DescribeDrafter(request, timeout=seconds, wait_for_ready=True)
        return codec.decode_model((await answer_of(call)).model)


class VerifierProbe:
    """Asks a verifier which model it has, and whether it serves."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)

    async def serving(self, seconds: float) -> bool:
        """Tell whether the verifier reports within `seconds` seconds that it serves."""
        return await is_serving(self._channel, "tandem.v1.VerifierService", seconds)

    async def describe(self, seconds: float) -> ModelDescription:
        """Return the target's description; waits up to `seconds` seconds for the verifier."""
        request = verifier_pb2.DescribeVerifierRequest()
        call = self._stub.DescribeVerifier(request, timeout=seconds, wait_for_ready=True)
        return codec.decode_model((await answer_of(call)).model)
