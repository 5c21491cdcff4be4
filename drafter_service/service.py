"""The drafter over gRPC: decode, run the job, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from drafter_service.guesses import way
from drafter_service.proposer import propose
from drafter_service.visible import visible_tokens
from engine.config import ModelServiceConfig
from engine.host import Host, hosting
from protos import codec, rpc
from protos.drafting import decode_shape
from protos.sampling import decode_sampling
from protos.tandem.v1 import drafter_pb2, drafter_pb2_grpc
from protos.types import DraftShape

NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """Holds the draft model."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._visible = visible_tokens(host.config.model, host.forward.model.token_count)

    async def Propose(
        self, request: drafter_pb2.ProposeRequest, context: Context
    ) -> drafter_pb2.ProposeResponse:
        """The next draft of one session."""
        call = codec.decode_context(request.context)
        shape = self._fitting(decode_shape(request.shape), call.length)
        sampling = decode_sampling(request.sampling)
        self._host.check_tokens("context.tokens", call.tokens)
        how = way(shape, sampling, call.length, self._visible)
        proposal = await self._host.thread.run(
            call.session_id, lambda: propose(self._host.sessions, call, how)
        )
        return codec.encode_proposal(proposal)

    def _fitting(self, shape: DraftShape, length: int) -> DraftShape:
        """The shape without the levels that lie behind the draft model's context."""
        room = max(0, self._host.context_length - length)
        return replace(shape, levels=min(shape.levels, room))

    async def CloseDraftSession(
        self, request: drafter_pb2.CloseDraftSessionRequest, context: Context
    ) -> drafter_pb2.CloseDraftSessionResponse:
        """Free a session; unknown ones are no error."""
        await self._host.close(request.session_id)
        return drafter_pb2.CloseDraftSessionResponse()

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: Context
    ) -> drafter_pb2.DescribeDrafterResponse:
        """The model and how full it is."""
        return drafter_pb2.DescribeDrafterResponse(model=codec.encode_model(self._host.describe()))


@asynccontextmanager
async def serving(config: ModelServiceConfig, registry: CollectorRegistry) -> AsyncIterator[str]:
    """A drafter while the scope lasts; yields its address."""
    exact = False if config.exact is None else config.exact
    async with hosting(config, "draft", exact, registry) as host:
        service = DrafterService(host)
        services = {
            NAME: lambda s: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(service, s)
        }
        async with rpc.serving(config.host, config.port, services) as address:
            yield address
