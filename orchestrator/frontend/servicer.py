"""The client API over gRPC."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import wraps
from importlib.metadata import version
from typing import Any, TypeAlias

from grpc import aio

from tandem.orchestrator.fleet.replicas import ReplicaStatus
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.client_guard import Authenticator, NoAuthentication
from tandem.orchestrator.frontend.history import Figures
from tandem.orchestrator.frontend.messages import (
    decode_request,
    encode_answer,
    encode_chunk,
)
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.status import Overview, Status
from tandem.orchestrator.requests.answer import Answer
from tandem.orchestrator.requests.checks import is_request_id
from tandem.orchestrator.requests.request import CLIENT_KEY, Request, client_digest
from tandem.protos.errors import DeadlineExceeded, InvalidRequest, Violation
from tandem.protos.service import tracing
from tandem.protos.service.drain import Drain
from tandem.protos.transport.guard import metadata_value
from tandem.protos.transport.interceptor import REQUEST_ID
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

CLOCK_SECONDS = 0.25  # a deadline that is closer than this counts as passed
MUTE_SECONDS = 60.0  # a call fails if the client reads nothing for this long
NO_AUTHENTICATION = NoAuthentication()
ServicerContext: TypeAlias = "aio.ServicerContext[Any, Any]"
STREAM_FIELDS = ("resume_from", "received")  # top-level fields, not in the nested `request`


def with_stream_paths(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Wrap a streaming handler so that its errors name invalid fields with the prefix `request.`.
    The fields in STREAM_FIELDS get no prefix, because they are not part of the nested `request`.
    """

    @wraps(handler)
    async def call(*arguments: Any) -> None:
        try:
            await handler(*arguments)
        except InvalidRequest as error:
            raise InvalidRequest(*map(_inside, error.violations)) from None

    return call


def _inside(violation: Violation) -> Violation:
    if violation.field in STREAM_FIELDS:
        return violation
    return replace(violation, field=f"request.{violation.field}")


class OrchestratorService(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """The gRPC service for clients of one model."""

    def __init__(
        self,
        answers: Answers,
        overview: Overview,
        drain: Drain,
        ends: RequestLog,
        authenticator: Authenticator = NO_AUTHENTICATION,
    ) -> None:
        self._answers = answers
        self._overview = overview
        self._drain = drain
        self._ends = ends
        self._authenticator = authenticator

    async def Generate(
        self, request: api.GenerateRequest, context: ServicerContext
    ) -> api.GenerateResponse:
        """Generate an answer, and return it in one response when it is complete."""
        asked = await self._identified(
            decode_request(request, client_of(context), context.peer()), context
        )
        with self._ends.logged(asked, timed_out(context)) as progress:
            generated = aclosing(self._answers.generate(asked, progress))
            async with self._drain.running(), generated as events:
                answers = [event async for event in events if isinstance(event, Answer)]
        return encode_answer(answers[-1])

    @with_stream_paths
    async def StreamGenerate(  # type: ignore[override]  # the method writes through the context
        self, request: api.StreamGenerateRequest, context: ServicerContext
    ) -> None:
        """Stream the answer while it is generated, without tokens that the client already has. The
        call fails if the client reads nothing for MUTE_SECONDS.
        """
        asked = decode_request(
            request.request,
            client_of(context),
            context.peer(),
            request.resume_from,
            tuple(request.received),
        )
        asked = await self._identified(asked, context)
        with self._ends.logged(asked, timed_out(context)) as progress:
            generated = aclosing(self._answers.generate(asked, progress))
            async with self._drain.running(), generated as events:
                async for event in events:
                    if isinstance(event, Answer):
                        response = api.StreamGenerateResponse(complete=encode_answer(event))
                    elif event:
                        response = api.StreamGenerateResponse(chunk=encode_chunk(event))
                    elif request.heartbeats:
                        response = api.StreamGenerateResponse()
                    else:
                        continue
                    await _send(context, response)

    async def _identified(self, request: Request, context: ServicerContext) -> Request:
        """Return the request with its caller's identity, its trace and its id. The request id is
        taken from the request or else from the metadata; otherwise it is random. The id is sent
        back as metadata, even if the request is refused later.
        """
        if identity := self._authenticator.identity(context):
            request = identity.owning(request)
        metadata = context.invocation_metadata()
        request_id = request.request_id or metadata_value(metadata, REQUEST_ID)
        request_id = request_id or secrets.token_hex(8)
        if is_request_id(request_id):
            await context.send_initial_metadata(((REQUEST_ID, request_id),))
        trace = tracing.given(metadata_value(metadata, tracing.TRACEPARENT))
        return replace(request, request_id=request_id, traceparent=trace)

    async def GetStatus(
        self, request: api.GetStatusRequest, context: ServicerContext
    ) -> api.GetStatusResponse:
        """Return the status of the served model, with its history if the request asks for it."""
        return encode_status(await self._overview.read(), request.history)


def client_of(context: ServicerContext) -> bytes:
    """Return a digest of the client's name; requests with the same digest share cached prefixes."""
    return client_digest(metadata_value(context.invocation_metadata(), CLIENT_KEY))


def timed_out(context: ServicerContext) -> Callable[[], bool]:
    """Return a function that tells whether the client's deadline has passed. A deadline that is
    less than CLOCK_SECONDS away counts as passed, because the client started its clock before the
    request arrived here.
    """

    def over() -> bool:
        left = context.time_remaining()
        return left is not None and left < CLOCK_SECONDS

    return over


async def _send(context: ServicerContext, response: api.StreamGenerateResponse) -> None:
    """Send one response of a stream to the client. Raises DeadlineExceeded if flow control delays
    the response for MUTE_SECONDS. gRPC reports DeadlineExceeded to the client once the client reads
    again, so that the client can retry and continue the stream. Raises CancelledError if the client
    has disconnected.
    """
    try:
        async with asyncio.timeout(MUTE_SECONDS):
            await context.write(response)
    except TimeoutError:
        raise DeadlineExceeded(f"the client read nothing for {MUTE_SECONDS:g} s") from None
    except aio.InternalError:  # the connection is lost, but gRPC has not cancelled the call yet
        raise asyncio.CancelledError from None


def encode_status(status: Status, with_history: bool) -> api.GetStatusResponse:
    """Encode the status of the service as a gRPC message."""
    model = api.ModelStatus(
        name=status.model,
        tokenizer_fingerprint=status.tokenizer_fingerprint,
        verifiers=map(encode_replica, status.verifiers),
        drafters=map(encode_replica, status.drafters),
        requests_running=status.running,
        requests_waiting=status.waiting,
        clients=(
            api.ClientStatus(name=each.name, running=each.running, waiting=each.waiting)
            for each in status.clients
        ),
        last_minute=encode_figures(status.last_minute),
        history=map(encode_figures, status.history if with_history else ()),
    )
    return api.GetStatusResponse(
        version=version("tandem-serving"),
        models=[model],
        problems=status.problems,
    )


def encode_figures(figures: Figures) -> api.RecentFigures:
    """Encode the metrics of one time interval as a gRPC message."""
    return api.RecentFigures(
        seconds=figures.seconds,
        tokens_per_second=figures.tokens_per_second,
        acceptance_rate=figures.acceptance_rate,
        mean_acceptance_length=figures.mean_acceptance_length,
        goodput_with_drafts=figures.goodput_with_drafts,
        goodput_without_drafts=figures.goodput_without_drafts,
        steps_with_drafts=figures.steps_with_drafts,
        goodput_gain=figures.goodput_gain,
        requests_finished=figures.finished,
        requests_failed=figures.failed,
        requests_running=figures.running,
        requests_waiting=figures.waiting,
    )


def encode_replica(replica: ReplicaStatus) -> api.ReplicaStatus:
    """Encode the status of a replica as a gRPC message."""
    known = replica.model
    found = api.ReplicaStatus(
        address=replica.address, serving=not replica.problem, problem=replica.problem
    )
    if known:
        found.model, found.device, found.dtype = known.name, known.device, known.dtype
        found.sessions, found.kv_cache_usage = known.sessions, known.cache_usage
        found.exactness, found.kernels = known.exactness, known.kernels
        found.fingerprint = known.fingerprint
        found.weights_bytes, found.context_length = known.weights_bytes, known.context_length
        found.cache_positions, found.full_sessions = known.cache_positions, known.full_sessions
        found.tokenizer, found.masked_tokens = known.tokenizer, known.masked_tokens
        found.round_trip_seconds = replica.round_trip_seconds
        found.acceptance_rate = replica.acceptance_rate or 0.0
        found.draft_tokens = replica.draft_tokens
    return found
