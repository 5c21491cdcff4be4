"""The drafter over gRPC: decode, run the job, encode."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from drafter_service.drafting import drafting
from engine.config import ModelServiceConfig
from engine.host import Host, hosting
from protos import codec, rpc
from protos.drafting import decode_shape
from protos.sampling import decode_sampling
from protos.tandem.v1 import drafter_pb2, drafter_pb2_grpc

NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
Context: TypeAlias = "aio.ServicerContext[Any, Any]"


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """Holds the draft model."""

    def __init__(self, host: Host) -> None:
        self._host, self._drafting = host, drafting(host)

    async def Propose(
        self, request: drafter_pb2.ProposeRequest, context: Context
    ) -> drafter_pb2.ProposeResponse:
        """The next draft of one session."""
        call = codec.decode_context(request.context)
        shape, sampling = decode_shape(request.shape), decode_sampling(request.sampling)
        began = time.perf_counter()
        proposal = await self._host.thread.run(
            call.session_id, lambda: self._drafting.propose(call, shape, sampling)
        )
        proposal = replace(proposal, seconds=time.perf_counter() - began)
        return codec.encode_proposal(proposal)

    async def CloseDraftSession(
        self, request: drafter_pb2.CloseDraftSessionRequest, context: Context
    ) -> drafter_pb2.CloseDraftSessionResponse:
        """Free a session; unknown ones are no error."""
        await self._host.close(request.session_id, self._drafting.close)
        return drafter_pb2.CloseDraftSessionResponse()

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: Context
    ) -> drafter_pb2.DescribeDrafterResponse:
        """The model and how full it is."""
        return drafter_pb2.DescribeDrafterResponse(
            model=codec.encode_model(self._drafting.describe())
        )


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
