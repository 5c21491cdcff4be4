"""The verifier's gRPC service: it starts a decoding job for each opening, passes proposals to the
jobs, and returns their commits.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.engine import port
from tandem.engine.call import Call
from tandem.engine.config import ModelServiceConfig
from tandem.engine.grammars import Grammars
from tandem.engine.host import Host, check_tokens, hosting
from tandem.engine.schedule.task import Job
from tandem.engine.streams import StreamServer
from tandem.protos.errors import InvalidRequest, TandemError, Unusable
from tandem.protos.service.about import announce_model
from tandem.protos.service.drain import Drain
from tandem.protos.service.pages import Pages
from tandem.protos.service.probes import add_probes
from tandem.protos.streams import Commit, Decoding, Proposal
from tandem.protos.transport.guard import common_name
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import decode_proposal
from tandem.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from tandem.verifier_service.decoding import DecodeJob, sample_step
from tandem.verifier_service.sources import Sources

MAX_WAITING_PROPOSALS = 64  # maximum number of proposals that may wait for a session's next step
# a message has 2 MB if each commit has 65 tokens with 20 log-probabilities
MAX_COMMITS_PER_MESSAGE = 200

RpcContext: TypeAlias = "aio.ServicerContext[Any, Any]"
Caller: TypeAlias = Call[Proposal, Commit]


class VerifierService(verifier_pb2_grpc.VerifierServiceServicer):
    """The gRPC service of a verifier, which holds the target model."""

    def __init__(self, host: Host, drain: Drain | None = None) -> None:
        self._host = host
        self.streams: StreamServer[Proposal, Commit] = StreamServer(
            host.thread, drain, ("verify", "step")
        )
        host.thread.after_forward = sample_step
        ends = host.runner.model.end_token_ids
        self._grammars = Grammars(host.config.model, ends, host.thread.wake)
        self._sources = Sources.of_all(host.config.recent_tokens)

    def Decode(
        self, requests: AsyncIterator[verifier_pb2.DecodeRequest], context: RpcContext
    ) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """Serve all sessions of one caller on one gRPC stream."""
        return self.streams.serve(requests, self._receive, self._respond, common_name(context))

    async def DescribeVerifier(
        self, request: verifier_pb2.DescribeVerifierRequest, context: RpcContext
    ) -> verifier_pb2.DescribeVerifierResponse:
        """Describe the target model and how full its cache is."""
        return verifier_pb2.DescribeVerifierResponse(
            model=codec.encode_model(self._host.describe())
        )

    def _receive(self, request: verifier_pb2.DecodeRequest, caller: Caller) -> None:
        caller.sent = request.sent
        for opening in request.open:
            try:
                self._open(opening, caller)
            except TandemError as error:
                self.streams.fail(caller, opening.stream, error)
        for proposal in request.proposals:
            self._proposal(proposal, caller)
        for flow in request.flows:
            if stream := caller.streams.get(flow.stream):
                stream.halted = flow.paused
        self.streams.close(caller, request.closings, self._host.sessions.close)

    def _open(self, message: verifier_pb2.Decoding, caller: Caller) -> None:
        opening = codec.decode_decoding(message)
        vocab_size = self._host.runner.model.vocab_size
        check_tokens("context.tokens", opening.context.tokens, vocab_size)
        length = opening.context.length
        if opening.until < length + (opening.prompt_logprobs is None):
            limit = f"is {opening.until}, but the context already has {length} tokens"
            raise InvalidRequest.of("until", limit)
        # the last token is emitted without being fed
        longest = self._host.sessions.context_length + 1
        if opening.until > longest and not opening.once:
            raise InvalidRequest.of("until", f"is {opening.until}, above {longest}")
        grammar = self._grammars.begin(opening.sampling, opening.context)

        def start(opening: Decoding, stream: Any) -> Job:
            sessions, sources, clock = self._host.sessions, self._sources.begun(), time.perf_counter
            return DecodeJob(sessions, opening, stream, sources, clock, grammar, self._price).run()

        if stream := self.streams.open(caller, message.stream, opening, start):
            stream.strict = opening.once

    def _price(self) -> float:
        """Return the price of a row: a proposed node with a lower chance of being accepted gets no
        row.
        """
        return self._host.thread.price

    def _proposal(self, message: common_pb2.Proposal, caller: Caller) -> None:
        """Put a proposal into its session's inbox. A proposal that cannot be verified is replaced
        by an empty one or, in a strict stream, ends the stream with an error.
        """
        stream = caller.streams.get(message.stream)
        if stream is None:
            return
        if len(stream.inbox) >= MAX_WAITING_PROPOSALS:
            stream.inbox.popleft()
        try:
            proposal = decode_proposal(message, time.perf_counter())
            vocab_size = self._host.runner.model.vocab_size
            check_tokens("draft.tokens", proposal.tokens, vocab_size)
            for each in proposal.distributions:
                check_tokens("draft.distributions", each.tokens, vocab_size)
        except InvalidRequest as error:
            if stream.strict:
                self.streams.end(stream, error)
                return
            proposal = Proposal(message.behind)
        stream.inbox.append(proposal)

    def _respond(self, caller: Caller) -> verifier_pb2.DecodeResponse:
        thread = self._host.thread
        response = verifier_pb2.DecodeResponse(
            sent=caller.sent,
            price=thread.price,
            token_seconds=thread.costs.averages.token,
            passes=codec.encode_passes(self.streams.passes),
            last=caller.last,
            streams=len(self.streams.live),
        )
        if not caller.described:
            caller.described = True
            response.model.CopyFrom(codec.encode_model(self._host.describe()))
        while caller.outgoing and len(response.commits) < MAX_COMMITS_PER_MESSAGE:
            stream, commit = caller.outgoing.popleft()
            response.commits.append(codec.encode_commit(stream, commit))
        while caller.failures and not caller.outgoing:  # commits are sent before failures
            response.failures.append(caller.failures.popleft())
        if caller.outgoing:
            caller.changed.set()
        return response


@asynccontextmanager
async def serving(
    config: ModelServiceConfig,
    registry: CollectorRegistry,
    drain: Drain | None = None,
    pages: Pages | None = None,
) -> AsyncIterator[str]:
    """Run a verifier service inside this context; yields its address. `pages` are the HTTP pages
    that the process serves to operators.
    """
    if config.speaks:
        raise Unusable("the setting speaks is for drafters: a verifier always uses its own tokens")
    if config.weights != "full":
        raise Unusable(
            f"the setting weights {config.weights} is for drafters: a verifier never rounds weights"
        )
    exact = True if config.exact is None else config.exact
    async with hosting(config, "verify", exact, registry) as host:
        service = VerifierService(host, drain)
        announce_model(host.describe())
        async with port.serving(config, host, service, service.streams, registry) as address:
            if pages:
                add_probes(pages, lambda: host.health.problems)
            yield address
