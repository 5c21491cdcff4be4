"""The drafter over gRPC: openings become drafting jobs, facts go in, guesses come out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from drafter_service.drafting import drafter
from drafter_service.tree.text import Report
from drafter_service.tree.worth import Conditions
from engine.config import ModelServiceConfig
from engine.host import Host, check_tokens, hosting
from engine.streams import Call, Streams
from protos.errors import TandemError
from protos.streams import Guess
from protos.tandem.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc
from protos.transport import rpc
from protos.wire import codec
from protos.wire.drafting import encode_guess

NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
MOST = 200  # guesses of a message: 3 MB if each has 64 nodes and what they were drawn from
LARGEST = 1e6  # of any number that callers say
INBOX = 1024  # facts of a session that wait for its next step

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Caller: TypeAlias = Call[Report, Guess]


class DrafterService(drafter_pb2_grpc.DrafterServiceServicer):
    """Holds the draft model."""

    def __init__(self, host: Host) -> None:
        self._drafter = drafter(host)
        self._vocab_size = self._drafter.describe().vocab_size
        self._streams: Streams[Report, Guess] = Streams(host.thread)

    def Guess(
        self, requests: AsyncIterator[drafter_pb2.GuessRequest], context: Context
    ) -> AsyncIterator[drafter_pb2.GuessResponse]:
        """All sessions of one caller."""
        return self._streams.serve(requests, partial(self._receive, Conditions()), self._respond)

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: Context
    ) -> drafter_pb2.DescribeDrafterResponse:
        """The model and how full it is."""
        return drafter_pb2.DescribeDrafterResponse(
            model=codec.encode_model(self._drafter.describe())
        )

    def _receive(
        self, conditions: Conditions, request: drafter_pb2.GuessRequest, caller: Caller
    ) -> None:
        caller.sent = request.sent
        if request.HasField("conditions"):
            said = request.conditions
            conditions.price, conditions.delay = bounded(said.price), bounded(said.delay)
            conditions.token_seconds = bounded(said.token_seconds)
        for opening in request.open:
            try:
                self._open(conditions, opening, caller)
            except TandemError as error:
                self._streams.fail(caller, opening.stream, error)
        for fact in request.facts:
            self._hear(fact, caller)
        for session_id in request.close:
            self._streams.close(session_id, self._drafter.close)

    def _open(self, conditions: Conditions, message: drafter_pb2.Drafting, caller: Caller) -> None:
        opening = codec.decode_drafting(message)
        check_tokens("context.tokens", opening.context.tokens, self._vocab_size)
        self._streams.open(
            caller,
            message.stream,
            opening.context,
            message.request_id,
            lambda port: self._drafter.draft(opening, port, conditions),
        )

    def _hear(self, fact: common_pb2.Fact, caller: Caller) -> None:
        """One that cannot be used is dropped; then the next does not fit, which ends the job."""
        port = caller.ports.get(fact.stream)
        tokens = tuple(fact.tokens)
        if port and len(port.inbox) < INBOX and max(tokens, default=0) < self._vocab_size:
            port.inbox.append((fact.start, tokens))

    def _respond(self, caller: Caller) -> drafter_pb2.GuessResponse:
        response = drafter_pb2.GuessResponse(sent=caller.sent)
        while caller.outgoing and len(response.guesses) < MOST:
            response.guesses.append(encode_guess(*caller.outgoing.popleft()))
        while caller.failures:
            response.failures.append(caller.failures.popleft())
        if caller.outgoing:
            caller.changed.set()
        return response


def bounded(said: float) -> float:
    """A number that a caller may have made up."""
    return min(max(0.0, said), LARGEST)


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
