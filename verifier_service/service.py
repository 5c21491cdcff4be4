"""The verifier over gRPC: openings become decoding jobs, guesses go in, facts come out."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from engine.config import ModelServiceConfig
from engine.host import Host, check_tokens, hosting
from engine.schedule.task import Job
from engine.streams import Call, Streams
from protos.errors import InvalidRequest, TandemError, Unusable
from protos.streams import Fact, Guess
from protos.tandem.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from protos.transport import rpc
from protos.wire import codec
from protos.wire.drafting import decode_guess
from verifier_service.decoding import Decode, judge_together
from verifier_service.guesses import Trust

NAME = verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
INBOX = 64  # guesses of a session that wait for its next step

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Caller: TypeAlias = Call[Guess, Fact]


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """Holds the target model."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._streams: Streams[Guess, Fact] = Streams(host.thread)
        if host.forward.model.device.type != "cpu":
            host.thread.fed = judge_together
        self._trust, self._lookup_trust = Trust(), Trust()  # of drafters, of looking up

    def Decode(
        self, requests: AsyncIterator[verifier_pb2.DecodeRequest], context: Context
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """All sessions of one caller."""
        return self._streams.serve(requests, self._receive, self._respond)

    async def DescribeVerifier(
        self, request: verifier_pb2.DescribeVerifierRequest, context: Context
    ) -> verifier_pb2.DescribeVerifierResponse:
        """The model and how full it is."""
        return verifier_pb2.DescribeVerifierResponse(
            model=codec.encode_model(self._host.describe())
        )

    def _receive(self, request: verifier_pb2.DecodeRequest, caller: Caller) -> None:
        caller.sent = request.sent
        for opening in request.open:
            try:
                self._open(opening, caller)
            except TandemError as error:
                self._streams.fail(caller, opening.stream, error)
        for guess in request.guesses:
            self._guess(guess, caller)
        for flow in request.flows:
            if port := caller.ports.get(flow.stream):
                port.halted = flow.paused
        for session_id in request.close:
            self._streams.close(session_id, self._host.sessions.close)

    def _open(self, message: verifier_pb2.Decoding, caller: Caller) -> None:
        opening = codec.decode_decoding(message)
        vocab_size = self._host.forward.model.vocab_size
        check_tokens("context.tokens", opening.context.tokens, vocab_size)
        if opening.until <= opening.context.length:
            limit = f"is {opening.until}, not above the {opening.context.length} tokens there are"
            raise InvalidRequest.of("until", limit)
        trust = self._lookup_trust if opening.lookup.levels else self._trust

        def start(port: Any) -> Job:
            return Decode(self._host.sessions, opening, port, trust, time.perf_counter).run()

        context, request_id = opening.context, message.request_id
        if port := self._streams.open(caller, message.stream, context, request_id, start):
            port.strict = opening.once

    def _guess(self, message: common_pb2.Guess, caller: Caller) -> None:
        """One that cannot be verified is taken for an empty one."""
        port = caller.ports.get(message.stream)
        if port is None:
            return
        if len(port.inbox) >= INBOX:
            port.inbox.popleft()
        try:
            guess = decode_guess(message, time.perf_counter())
            vocab_size = self._host.forward.model.vocab_size
            check_tokens("draft.tokens", guess.tokens, vocab_size)
            for each in guess.distributions:
                check_tokens("draft.distributions", each.tokens, vocab_size)
        except InvalidRequest as error:
            if port.strict:
                self._streams.fail(caller, message.stream, error)
            guess = Guess(message.behind)
        port.inbox.append(guess)

    def _respond(self, caller: Caller) -> verifier_pb2.DecodeResponse:
        thread = self._host.thread
        response = verifier_pb2.DecodeResponse(
            sent=caller.sent, price=thread.price, token_seconds=thread.rates.token
        )
        while caller.outgoing:
            stream, fact = caller.outgoing.popleft()
            response.facts.append(codec.encode_fact(stream, fact))
        while caller.failures:
            response.failures.append(caller.failures.popleft())
        return response


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
