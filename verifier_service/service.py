"""The verifier over gRPC: decode, run the job, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from engine.config import ModelServiceConfig
from engine.host import Host, check_tokens, hosting
from protos import codec, rpc
from protos.drafting import decode_draft
from protos.errors import Unusable
from protos.sampling import decode_sampling
from protos.tandem.v1 import verifier_pb2, verifier_pb2_grpc
from verifier_service.verifier import verify

NAME = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """Holds the target model."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def Verify(
        self, request: verifier_pb2.VerifyRequest, context: Context
    ) -> verifier_pb2.VerifyResponse:
        """One round of one session."""
        call = codec.decode_context(request.context)
        draft = decode_draft(request.draft)
        sampling = decode_sampling(request.sampling)
        vocab_size = self._host.forward.model.vocab_size
        check_tokens("context.tokens", call.tokens, vocab_size)
        check_tokens("draft.tokens", draft.tokens, vocab_size)
        for each in draft.distributions:
            check_tokens("draft.distributions", each.tokens, vocab_size)
        verdict = await self._host.thread.run(
            call.session_id, lambda: verify(self._host.sessions, call, draft, sampling)
        )
        verdict = replace(verdict, token_seconds=self._host.thread.token_seconds)
        return codec.encode_verdict(verdict)

    async def CloseVerifySession(
        self, request: verifier_pb2.CloseVerifySessionRequest, context: Context
    ) -> verifier_pb2.CloseVerifySessionResponse:
        """Free a session; unknown ones are no error."""
        await self._host.close(request.session_id, self._host.sessions.close)
        return verifier_pb2.CloseVerifySessionResponse()

    async def DescribeVerifier(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Context
    ) -> verifier_pb2.DescribeVerifierResponse:
        """The model and how full it is."""
        return verifier_pb2.DescribeVerifierResponse(
            model=codec.encode_model(self._host.describe())
        )


@asynccontextmanager
async def serving(config: ModelServiceConfig, registry: CollectorRegistry) -> AsyncIterator[str]:
    """A verifier while the scope lasts; yields its address."""
    if config.speaks:
        raise Unusable("speaks is for drafters: a verifier's tokens are its model's own")
    if config.weights != "full":
        raise Unusable(
            f"weights {config.weights} is for drafters: a verifier keeps the model's own"
        )
    exact = True if config.exact is None else config.exact
    async with hosting(config, "verify", exact, registry) as host:
        service = VerifierService(host)
        services = {
            NAME: lambda s: verifier_pb2_grpc.add_VerifierServiceServicer_to_server(service, s)
        }
        async with rpc.serving(config.host, config.port, services) as address:
            yield address
