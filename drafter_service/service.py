"""The drafter's gRPC service: it starts a drafting job for each opening, passes commits to the
jobs, and returns their proposals.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.drafter_service.drafting import drafter_of
from tandem.drafter_service.registration import registering
from tandem.drafter_service.tree.session_text import CommitTokens
from tandem.drafter_service.tree.worth import Conditions
from tandem.engine import port
from tandem.engine.call import Call
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import Host, check_tokens, hosting
from tandem.engine.streams import StreamServer
from tandem.protos.errors import TandemError
from tandem.protos.service.about import announce_model, report_drafter
from tandem.protos.service.drain import Drain
from tandem.protos.service.pages import Pages
from tandem.protos.service.probes import add_probes
from tandem.protos.streams import Proposal
from tandem.protos.transport.guard import common_name
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import encode_proposal
from tandem.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

# a message has 3 MB if each proposal has 64 nodes with distributions
MAX_PROPOSALS_PER_MESSAGE = 200
MAX_NUMBER = 1e6  # upper limit of the measurements that a caller reports
MAX_WAITING_COMMITS = 1024  # maximum number of commits that may wait for a session's next step

RpcContext: TypeAlias = "aio.ServicerContext[Any, Any]"
Caller: TypeAlias = Call[CommitTokens, Proposal]


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """The gRPC service of a drafter, which holds the draft model."""

    def __init__(self, host: Host, drain: Drain | None = None) -> None:
        self._drafter = drafter_of(host)
        self.describe = self._drafter.describe
        self._vocab_size = self.describe().vocab_size
        self.streams: StreamServer[CommitTokens, Proposal] = StreamServer(
            host.thread, drain, ("draft", "proposal")
        )

    def Propose(
        self, requests: AsyncIterator[drafter_pb2.ProposeRequest], context: RpcContext
    ) -> AsyncGenerator[drafter_pb2.ProposeResponse, None]:
        """Serve all sessions of one caller on one gRPC stream."""
        return self.serve(requests, common_name(context))

    def serve(
        self, requests: AsyncIterator[drafter_pb2.ProposeRequest], peer: str
    ) -> AsyncGenerator[drafter_pb2.ProposeResponse, None]:
        """Serve the requests of a caller whose name is already known. `Propose` passes the name in
        the caller's certificate.
        """
        receive = partial(self._receive, Conditions())
        return self.streams.serve(requests, receive, self._respond, peer)

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: RpcContext
    ) -> drafter_pb2.DescribeDrafterResponse:
        """Describe the draft model and how full its cache is."""
        return drafter_pb2.DescribeDrafterResponse(model=codec.encode_model(self.describe()))

    def _receive(
        self, conditions: Conditions, request: drafter_pb2.ProposeRequest, caller: Caller
    ) -> None:
        caller.sent = request.sent
        caller.note(request.read)
        if request.HasField("conditions"):
            message = request.conditions
            conditions.price, conditions.delay = bounded(message.price), bounded(message.delay)
            conditions.token_seconds = bounded(message.token_seconds)
        for opening in request.open:
            try:
                self._open(conditions, opening, caller)
            except TandemError as error:
                self.streams.fail(caller, opening.stream, error)
        for commit in request.commits:
            self._receive_commit(commit, caller)
        self.streams.close(caller, request.closings, self._drafter.close)

    def _open(self, conditions: Conditions, message: drafter_pb2.Drafting, caller: Caller) -> None:
        opening = codec.decode_drafting(message)
        check_tokens("context.tokens", opening.context.tokens, self._vocab_size)
        self.streams.open(
            caller,
            message.stream,
            opening,
            lambda opening, stream: self._drafter.draft(opening, stream, conditions),
        )

    def _receive_commit(self, commit: common_pb2.Commit, caller: Caller) -> None:
        """Put a commit into its session's inbox. A commit that cannot be used is dropped, which
        leaves a gap in the session's text. A session's job fails when it finds such a gap in the
        committed tokens.
        """
        stream = caller.streams.get(commit.stream)
        tokens = tuple(commit.tokens)
        if (
            stream
            and len(stream.inbox) < MAX_WAITING_COMMITS
            and max(tokens, default=0) < self._vocab_size
        ):
            stream.inbox.append((commit.start, tokens))

    def _respond(self, caller: Caller) -> drafter_pb2.ProposeResponse:
        response = drafter_pb2.ProposeResponse(
            sent=caller.sent,
            clock=monotonic(),
            passes=codec.encode_passes(self.streams.passes),
            last=caller.last,
            streams=len(self.streams.live),
        )
        if not caller.described:
            caller.described = True
            response.model.CopyFrom(codec.encode_model(self.describe()))
        while caller.outgoing and len(response.proposals) < MAX_PROPOSALS_PER_MESSAGE:
            response.proposals.append(encode_proposal(*caller.outgoing.popleft()))
        while caller.failures:
            response.failures.append(caller.failures.popleft())
        if caller.outgoing:
            caller.changed.set()
        # this caller reports which messages it has read
        if response.proposals and caller.trip.seconds:
            caller.trip.sent(response.clock, response.ByteSize())
        return response


def bounded(number: float) -> float:
    """Clamp a number that a caller sent to the range from 0 to MAX_NUMBER."""
    return min(max(0.0, number), MAX_NUMBER)


@asynccontextmanager
async def serving(
    config: ModelServiceConfig,
    registry: CollectorRegistry,
    drain: Drain | None = None,
    pages: Pages | None = None,
) -> AsyncIterator[str]:
    """Run a drafter service inside this context; yields its address. `pages` are the HTTP pages
    that the process serves to operators.
    """
    exact = False if config.exact is None else config.exact
    async with hosting(config, "draft", exact, registry) as host:
        service = DrafterService(host, drain)
        report_drafter(registry, service.describe())
        announce_model(service.describe())
        async with (
            registering(config, host.health, service.describe, service.serve),
            port.serving(config, host, service, service.streams, registry) as address,
        ):
            if pages:
                add_probes(pages, lambda: host.health.problems)
            yield address
