"""A round worker: crosses the streams of many generations and streams what each adds.

Has no state of a request: it carries its tokens so far, so a worker may die at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from time import monotonic
from typing import Any, TypeAlias

import grpc
from grpc import aio

from orchestrator.rounds.crossing import Crossing, Services, Step
from orchestrator.rounds.generation import Generation
from orchestrator.workers.link import BEAT_SECONDS, Link
from protos.tandem.v1 import (
    drafter_pb2,
    drafter_pb2_grpc,
    orchestrator_pb2,
    rounds_pb2,
    rounds_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from protos.transport import rpc
from protos.wire import codec
from protos.wire.drafting import decode_shape
from protos.wire.sampling import decode_sampling

NAME = rounds_pb2.DESCRIPTOR.services_by_name["RoundWorkerService"].full_name
CELL_KEY = "x-tandem-cell"
SPREAD = 0.5  # of a delay, by which it may be longer

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class LoopTimer:
    """The event loop's time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now, self._later = loop.time, loop.call_later

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after so many seconds, or a few more: not all callers at once."""
        return self._later(seconds * random.uniform(1, 1 + SPREAD), call)


class RoundWorkerService(rounds_pb2_grpc.RoundWorkerServiceServicer):
    """Serves the front end of its own cell only."""

    def __init__(
        self, verifier: Link[verifier_pb2.DecodeRequest], drafter: Link[drafter_pb2.GuessRequest]
    ) -> None:
        self._verifier, self._drafter = verifier, drafter
        self._services = Services(verifier, drafter, LoopTimer(), itertools.count(1))

    async def Run(
        self, request: rounds_pb2.RunRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rounds_pb2.RunResponse]:
        """Steps until the generation ends; whatever ends it, its sessions are closed."""
        changed = asyncio.Event()
        shape = decode_shape(request.shape)
        crossing = Crossing(
            generation_of(request), shape, request.request_id, self._services, changed.set
        )
        try:
            while True:
                while crossing.steps:
                    yield self._encode(crossing, crossing.take())
                if crossing.ended:
                    break
                await changed.wait()
                changed.clear()
            if crossing.error:
                raise crossing.error
        finally:
            crossing.end()

    def _encode(self, crossing: Crossing, step: Step) -> rounds_pb2.RunResponse:
        """A step as a message."""
        fact, size = step.fact, len(step.tokens)
        finish = step.finish.value if step.finish else 0
        return rounds_pb2.RunResponse(
            tokens=step.tokens,
            drafted=fact.drafted,
            accepted=min(fact.accepted, size),
            finish_reason=orchestrator_pb2.FinishReason.ValueType(finish),
            matched_token_id=crossing.generation.matched_token_id if finish else None,
            reused=fact.reused,
            logprobs=fact.logprobs[:size],
            expected=fact.expected,
            late=fact.late,
            unused=fact.unused,
            seconds=step.seconds,
            drafter_switches=max(0, crossing.drafter.openings - 1),
            verifier_switches=max(0, crossing.verifier.openings - 1),
            drafter_round_trip=self._drafter.round_trip,
            verifier_round_trip=self._verifier.round_trip,
        )


def generation_of(request: rounds_pb2.RunRequest) -> Generation:
    """What a request asks for, and what it has already; raises InvalidRequest."""
    return Generation(
        session_id=codec.decode_session_id("session_id", request.session_id),
        prompt=tuple(request.prompt),
        sampling=decode_sampling(request.sampling),
        max_new_tokens=request.max_new_tokens,
        stop_token_ids=frozenset(request.stop_token_ids),
        completion=list(request.completion),
        client=request.client,
        turn=request.first_turn,
    )


class CellGuard(aio.ServerInterceptor):
    """Refuses whoever does not know the cell's key: a worker's port is for its own front end."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC once per call."""
        given = str(dict(details.invocation_metadata or ()).get(CELL_KEY, ""))
        if secrets.compare_digest(given, self._key):
            return await continuation(details)

        async def refuse(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a member of this cell")

        return grpc.unary_unary_rpc_method_handler(refuse)


@asynccontextmanager
async def serving(host: str, verifier: str, drafter: str, key: str) -> AsyncIterator[str]:
    """A round worker on a free port while the scope lasts; yields its address."""
    async with (
        rpc.connect(verifier) as to_verifier,
        rpc.connect(drafter) as to_drafter,
        verifying(to_verifier) as decoding,
        drafting(to_drafter, decoding) as guessing,
    ):
        service = RoundWorkerService(decoding, guessing)
        services = {
            NAME: lambda s: rounds_pb2_grpc.add_RoundWorkerServiceServicer_to_server(service, s)
        }
        async with rpc.serving(host, 0, services, CellGuard(key)) as address:
            yield address


def verifying(channel: aio.Channel) -> Link[verifier_pb2.DecodeRequest]:
    """The link to a verifier."""
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    return Link("verifier", stub.Decode, verifier_pb2.DecodeRequest, "facts")


def drafting(
    channel: aio.Channel, verifier: Link[verifier_pb2.DecodeRequest]
) -> Link[drafter_pb2.GuessRequest]:
    """The link to a drafter, which is told now and then what guesses are good for."""

    told = -inf

    def tell(message: drafter_pb2.GuessRequest) -> None:
        nonlocal told
        if link.connected and monotonic() - told < BEAT_SECONDS:
            return
        told = monotonic()
        message.conditions.price, message.conditions.token_seconds = verifier.load
        message.conditions.delay = verifier.round_trip + link.round_trip

    stub = drafter_pb2_grpc.DrafterServiceStub(channel)
    link = Link("drafter", stub.Guess, drafter_pb2.GuessRequest, "guesses", tell)
    return link
