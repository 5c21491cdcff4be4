"""A round worker: relays facts and guesses of many requests, and streams the steps of each.

A request carries its tokens so far, so a worker may die at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeAlias

from grpc import aio

from tandem.orchestrator.fleet.membership import Membership, PerAddress
from tandem.orchestrator.fleet.registration import Access, Metadata
from tandem.orchestrator.rounds.relay import Relay, Services, ToDrafter, ToVerifier
from tandem.orchestrator.rounds.stream import ServiceLink
from tandem.orchestrator.workers.balanced import BalancedLink
from tandem.orchestrator.workers.fitting import same_model, same_tokenizer
from tandem.orchestrator.workers.link import Link
from tandem.protos.service import tracing
from tandem.protos.service.tasks import background, first_done
from tandem.protos.streams import EncodedGuess, Fact
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.key import KeyInterceptor
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import decode_fact
from tandem.protos.wire.requests import receive_guess
from tandem.protos.wire.rounds import decode_attend, decode_run, encode_step
from tandem.v1 import (
    drafter_pb2,
    drafter_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)

JITTER = 0.5  # of a delay, by which it may be longer

VerifierLink: TypeAlias = Link[ToVerifier, Fact]
DrafterLink: TypeAlias = Link[ToDrafter, EncodedGuess]


class LoopTimer:
    """The event loop's time."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now, self._call_later = loop.time, loop.call_later

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after so many seconds, or a random part more, so that callers spread out."""
        return self._call_later(seconds * random.uniform(1, 1 + JITTER), call)


class RoundWorkerService(rounds_pb2_grpc.RoundWorkerServiceServicer):
    """Serves its own front end only."""

    def __init__(
        self,
        verifier: ServiceLink[ToVerifier, Fact],
        drafter: ServiceLink[ToDrafter, EncodedGuess],
        membership: Membership | None = None,
    ) -> None:
        self._services = Services(verifier, drafter, LoopTimer(), itertools.count(1))
        self._membership = membership or Membership()

    async def Run(
        self, request: rounds_pb2.RunRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rounds_pb2.RunResponse]:
        """Steps until the generation ends; however it ends, its sessions are closed."""
        changed, run = asyncio.Event(), decode_run(request)
        span = tracing.begin("relay", run.traceparent, request_id=run.request_id)
        run = replace(run, traceparent=span.traceparent)
        relay = Relay(run, self._services, changed.set)
        try:
            while True:
                while relay.steps:
                    step = relay.take()
                    span.part("round", tokens=len(step.tokens), drafted=step.drafted)
                    yield encode_step(step)
                if relay.ended:
                    break
                await changed.wait()
                changed.clear()
            if relay.error:
                raise relay.error
        finally:
            relay.end()
            span.end(relay.error)

    async def Attend(
        self,
        requests: AsyncIterator[rounds_pb2.AttendRequest],
        context: aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[rounds_pb2.AttendResponse]:
        """Heartbeats while the front end is there; uses the replicas that it reports."""

        async def read() -> None:
            async for request in requests:
                if members := decode_attend(request):
                    self._membership.set(members)

        reading = asyncio.create_task(read())
        try:
            while not reading.done():
                yield rounds_pb2.AttendResponse()
                await asyncio.wait((reading,), timeout=heartbeat.SECONDS)
        finally:
            reading.cancel()


@asynccontextmanager
async def serving(host: str, access: Access, target: ModelDescription) -> AsyncIterator[str]:
    """A round worker on a free port while the scope lasts, for verifiers of this very target and
    drafters with its tokens; yields its address. The front end reports where they are.
    """
    verifiers: BalancedLink[ToVerifier, Fact] = BalancedLink()
    drafters: BalancedLink[ToDrafter, EncodedGuess] = BalancedLink()
    membership, tokenizer = Membership(), target.tokenizer_fingerprint
    verifier, drafter = (partial(access.reach, role=each) for each in ("verifier", "drafter"))

    def to_verifier(channel: aio.Channel, metadata: Metadata) -> VerifierLink:
        return verifier_link(channel, target.identity)

    def to_drafter(channel: aio.Channel, metadata: Metadata) -> DrafterLink:
        return drafter_link(channel, verifiers, tokenizer, metadata)

    drained = asyncio.Event()
    verifiers.drained = drafters.drained = drained.set

    async def follow() -> None:
        async with (
            PerAddress(partial(_linked, verifiers, to_verifier, verifier)) as at_verifiers,
            PerAddress(partial(_linked, drafters, to_drafter, drafter)) as at_drafters,
        ):
            while True:
                known = membership.now
                await at_verifiers.update(verifiers.retain(known.verifiers))
                await at_drafters.update(drafters.retain(known.drafters))
                await first_done(membership.other_than(known), drained.wait())
                drained.clear()

    async def leave_slow_replicas() -> None:
        while True:
            await asyncio.sleep(heartbeat.SECONDS)
            for service in (verifiers, drafters):
                service.leave_slow(monotonic())

    service = RoundWorkerService(verifiers, drafters, membership)
    protected, security = KeyInterceptor(access.key), rpc.Security(access.tls)
    async with (
        background(follow(), leave_slow_replicas()),
        rpc.serving(host, 0, service, protected, security=security) as address,
    ):
        yield address


@asynccontextmanager
async def _linked(
    balanced: BalancedLink[Any, Any],
    make: Callable[[aio.Channel, Metadata], Link[Any, Any]],
    reach: Callable[[str], tuple[aio.Channel, Metadata]],
    address: str,
) -> AsyncIterator[None]:
    """One more replica while the scope lasts."""
    channel, metadata = reach(address)
    async with channel, make(channel, metadata) as link:
        balanced.add(address, link)
        try:
            yield
        finally:
            balanced.remove(address)


def verifier_link(channel: aio.Channel, identity: str = "") -> VerifierLink:
    """The link to a verifier, while it holds the model with this identity; by default the first
    that it is seen with.
    """
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    return Link(
        "verifier",
        stub.Decode,
        verifier_pb2.DecodeRequest,
        "facts",
        decode_fact,
        fits=same_model(identity),
    )


def drafter_link(
    channel: aio.Channel,
    verifier: ServiceLink[ToVerifier, Fact],
    tokenizer: str = "",
    metadata: Metadata = (),
) -> DrafterLink:
    """The link to a drafter, while its tokenizer has this fingerprint; by default any. Its requests
    report the verifiers' load, now and then; `metadata` is what its calls have.
    """

    reported = -inf

    def report_conditions(request: drafter_pb2.GuessRequest) -> None:
        nonlocal reported
        if link.connected and monotonic() - reported < heartbeat.SECONDS:
            return
        reported = monotonic()
        request.conditions.price, request.conditions.token_seconds = verifier.load
        request.conditions.delay = verifier.round_trip + link.round_trip

    stub = drafter_pb2_grpc.DrafterServiceStub(channel)
    link: DrafterLink = Link(
        "drafter",
        partial(stub.Guess, metadata=metadata),
        drafter_pb2.GuessRequest,
        "guesses",
        receive_guess,
        report_conditions,
        same_tokenizer(tokenizer),
    )
    return link
