"""The drafter and verifier ports over gRPC."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import grpc
from structlog.contextvars import get_contextvars

from protos import codec, rpc, status
from protos.drafting import encode_draft, encode_shape
from protos.errors import Internal
from protos.sampling import encode_sampling
from protos.tandem.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from protos.types import (
    Context,
    Draft,
    DraftShape,
    ModelDescription,
    Proposal,
    SamplingParams,
    Verdict,
)

PROPOSE_SECONDS = 5.0
VERIFY_SECONDS = 60.0
CLOSE_SECONDS = 2.0

Response = TypeVar("Response")


async def _answer(call: Awaitable[Response]) -> Response:
    """Await a call; a failed one raises the TandemError that it stands for."""
    try:
        response = await call
    except grpc.aio.AioRpcError as failure:
        raise status.decode(failure) from None
    if response is None:
        raise Internal("the answer cannot be decoded")
    return response


def _metadata() -> tuple[tuple[str, str], ...]:
    return tuple(rpc.metadata_of(str(get_contextvars().get("request_id", ""))))


class DrafterClient:
    """A drafter at an address."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = drafter_pb2_grpc.DrafterServiceStub(channel)

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """A draft for the context."""
        request = drafter_pb2.ProposeRequest(
            context=codec.encode_context(context),
            shape=encode_shape(shape),
            sampling=encode_sampling(sampling),
        )
        call = self._stub.Propose(request, timeout=PROPOSE_SECONDS, metadata=_metadata())
        return codec.decode_proposal(await _answer(call))

    async def close(self, session_id: bytes) -> None:
        """Free the session."""
        request = drafter_pb2.CloseDraftSessionRequest(session_id=session_id)
        await _answer(self._stub.CloseDraftSession(request, timeout=CLOSE_SECONDS))

    async def describe(self, seconds: float) -> ModelDescription:
        """The draft model; waits up to `seconds` for the service to come up."""
        request = drafter_pb2.DescribeDrafterRequest()
        call = self._stub.DescribeDrafter(request, timeout=seconds, wait_for_ready=True)
        return codec.decode_model((await _answer(call)).model)


class VerifierClient:
    """A verifier at an address."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = verifier_pb2_grpc.VerifierServiceStub(channel)

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        """Which nodes stand and the next token."""
        request = verifier_pb2.VerifyRequest(
            context=codec.encode_context(context),
            draft=encode_draft(draft) if draft.tokens else None,
            sampling=encode_sampling(sampling),
        )
        call = self._stub.Verify(request, timeout=VERIFY_SECONDS, metadata=_metadata())
        return codec.decode_verdict(await _answer(call))

    async def close(self, session_id: bytes) -> None:
        """Free the session."""
        request = verifier_pb2.CloseVerifySessionRequest(session_id=session_id)
        await _answer(self._stub.CloseVerifySession(request, timeout=CLOSE_SECONDS))

    async def describe(self, seconds: float) -> ModelDescription:
        """The target model; waits up to `seconds` for the service to come up."""
        request = verifier_pb2.DescribeVerifierRequest()
        call = self._stub.DescribeVerifier(request, timeout=seconds, wait_for_ready=True)
        return codec.decode_model((await _answer(call)).model)
