"""The client API over gRPC: messages to requests, chunks and answers to messages."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

from google.protobuf.message import Message
from grpc import aio

from tandem.orchestrator.frontend.answer import Answer
from tandem.orchestrator.frontend.answer_message import encode_answer, encode_chunk
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.checks import is_request_id
from tandem.orchestrator.frontend.client_guard import Anybody, Callers
from tandem.orchestrator.frontend.prompt_message import decode_prompt
from tandem.orchestrator.frontend.request import Request, Sampling, Speculation, Stopping
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.share import (
    CLIENT_KEY,
    client_digest,
    connection_digest,
    scope_of,
)
from tandem.orchestrator.frontend.status import Overview
from tandem.orchestrator.frontend.status_message import encode_status
from tandem.orchestrator.frontend.stream_paths import with_stream_paths
from tandem.protos.errors import DeadlineExceeded, InvalidRequest, Violation
from tandem.protos.service import tracing
from tandem.protos.service.drain import Drain
from tandem.protos.transport.guard import metadata_value
from tandem.protos.transport.interceptor import REQUEST_ID
from tandem.protos.types import Method, Rule, Schedule
from tandem.protos.wire.drafting import decode_choice
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc

CLOCK_SECONDS = 0.25  # by which a request may take to arrive
MUTE_SECONDS = 60.0  # that a client may read nothing
ANYBODY = Anybody()
CHOICES = {"rule": Rule, "method": Method, "schedule": Schedule}
ServicerContext: TypeAlias = "aio.ServicerContext[Any, Any]"


class OrchestratorService(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Serves one model."""

    def __init__(
        self,
        answers: Answers,
        overview: Overview,
        drain: Drain,
        ends: RequestLog,
        callers: Callers = ANYBODY,
    ) -> None:
        self._answers, self._overview, self._drain, self._ends = answers, overview, drain, ends
        self._callers = callers

    async def Generate(
        self, request: api.GenerateRequest, context: ServicerContext
    ) -> api.GenerateResponse:
        """The whole answer: the last event of the stream."""
        asked = await self._identified(
            decode_request(request, client_of(context), context.peer()), context
        )
        with self._ends.logged(asked, timed_out(context)) as course:
            generated = aclosing(self._answers.generate(asked, course))
            async with self._drain.running(), generated as events:
                answers = [event async for event in events if isinstance(event, Answer)]
        return encode_answer(answers[-1])

    @with_stream_paths
    async def StreamGenerate(  # type: ignore[override]  # it writes through the context
        self, request: api.StreamGenerateRequest, context: ServicerContext
    ) -> None:
        """The answer as it grows; tokens that the client already has are not sent again. A client
        that reads nothing is not waited for.
        """
        asked = decode_request(
            request.request,
            client_of(context),
            context.peer(),
            request.resume_from,
            tuple(request.received),
        )
        asked = await self._identified(asked, context)
        with self._ends.logged(asked, timed_out(context)) as course:
            generated = aclosing(self._answers.generate(asked, course))
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
        """The request of its caller, with an id."""
        identity = self._callers.identity(context)
        return await _identified(identity.owning(request) if identity else request, context)

    async def GetStatus(
        self, request: api.GetStatusRequest, context: ServicerContext
    ) -> api.GetStatusResponse:
        """What is served and how it is doing."""
        return encode_status(await self._overview.read(), request.history)


def client_of(context: ServicerContext) -> bytes:
    """Whose cached prefixes may be used."""
    return client_digest(str(dict(context.invocation_metadata() or ()).get(CLIENT_KEY, "")))


async def _identified(request: Request, context: ServicerContext) -> Request:
    """The request with its trace and its id: the field, or else that of the metadata, or else a new
    one. It is sent back as metadata, also when the request is refused later.
    """
    given = str(dict(context.invocation_metadata() or ()).get(REQUEST_ID) or "")
    request_id = request.request_id or given or secrets.token_hex(8)
    if is_request_id(request_id):
        await context.send_initial_metadata(((REQUEST_ID, request_id),))
    trace = tracing.given(metadata_value(context.invocation_metadata(), tracing.TRACEPARENT))
    return replace(request, request_id=request_id, traceparent=trace)


def timed_out(context: ServicerContext) -> Callable[[], bool]:
    """Whether the time that the client gave is over; its own clock began a little earlier."""

    def over() -> bool:
        left = context.time_remaining()
        return left is not None and left < CLOCK_SECONDS

    return over


async def _send(context: ServicerContext, response: api.StreamGenerateResponse) -> None:
    """Raises DeadlineExceeded if flow control keeps it here for too long, which the client's own
    retries take for a reason to continue the stream. gRPC delivers it when the client reads again.
    Raises CancelledError if the client has left.
    """
    try:
        async with asyncio.timeout(MUTE_SECONDS):
            await context.write(response)
    except TimeoutError:
        raise DeadlineExceeded(f"the client read nothing for {MUTE_SECONDS:g} s") from None
    except aio.InternalError:  # the connection has gone, and gRPC has not cancelled the call yet
        raise asyncio.CancelledError from None


def decode_request(
    message: api.GenerateRequest,
    client: bytes = b"",
    connection: str = "",
    resume_from: int = 0,
    received: tuple[int, ...] = (),
) -> Request:
    """Message to request; one without a client has the share of its connection."""
    sampling, stopping = message.sampling, message.stopping
    speculation, malformed = _given(message.speculation), list[Violation]()
    for field, choice in CHOICES.items():
        try:
            if number := speculation.pop(field, 0):
                speculation[field] = decode_choice(f"speculation.{field}", choice, number)
        except InvalidRequest as unknown:
            malformed += unknown.violations
    biases = tuple(sorted(sampling.logit_bias.items()))
    lists = {"stop": tuple(stopping.stop), "stop_token_ids": tuple(stopping.stop_token_ids)}
    return Request(
        decode_prompt(message),
        message.request_id,
        message.model,
        Sampling(**_given(sampling) | {"logit_bias": biases}),
        Stopping(**_given(stopping) | lists),
        Speculation(**speculation),
        message.logprobs if message.HasField("logprobs") else None,
        resume_from,
        received,
        scope_of(client, message.cache_salt),
        client or connection_digest(connection),
        tuple(malformed),
    )


def _given(message: Message) -> dict[str, Any]:
    """The fields that are set, zero or not."""
    return {field.name: value for field, value in message.ListFields()}
