"""Runs the rounds of all requests of a cell: a relay for each request, and a link to each replica.

Everything runs on the event loop that also serves clients. Each step is passed by function calls
from the link that received it to the client's answer.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any, TypeAlias

from grpc import aio

from tandem.orchestrator.fleet.membership import Membership, PerAddress
from tandem.orchestrator.fleet.registration import Registry
from tandem.orchestrator.links.balanced import BalancedLink
from tandem.orchestrator.links.link import Link, ModelCheck
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.orchestrator.rounds.relay import Relay, Services, ToDrafter, ToVerifier
from tandem.orchestrator.rounds.step import Step
from tandem.orchestrator.rounds.stream import ServiceLink
from tandem.protos.service import tracing
from tandem.protos.service.tasks import background, first_done
from tandem.protos.streams import Commit, EncodedProposal
from tandem.protos.tls import Tls
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import decode_commit
from tandem.protos.wire.registration import registered_name
from tandem.protos.wire.requests import receive_proposal
from tandem.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

JITTER = 0.5  # delays are lengthened at random by up to this fraction

VerifierLink: TypeAlias = Link[ToVerifier, Commit]
DrafterLink: TypeAlias = Link[ToDrafter, EncodedProposal]


class LoopTimer:
    """The clock and timer of the event loop."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time
        self._call_later = loop.call_later

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `call` after `seconds` seconds plus a random delay, to spread the callers out."""
        return self._call_later(seconds * random.uniform(1, 1 + JITTER), call)


class Relays:
    """Runs requests on the event loop on which this object was created."""

    def __init__(
        self,
        verifier: ServiceLink[ToVerifier, Commit],
        drafter: ServiceLink[ToDrafter, EncodedProposal],
    ) -> None:
        self.services = Services(verifier, drafter, LoopTimer(), itertools.count(1))

    async def run(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        """Run a request and yield its steps until the generation ends. The request's sessions are
        closed even if the run fails or is cancelled. Raises a TandemError.
        """
        changed = asyncio.Event()
        span = tracing.begin("relay", request.traceparent, request_id=request.request_id)
        relay = Relay(replace(request, traceparent=span.traceparent), self.services, changed.set)
        try:
            while True:
                while relay.steps:
                    step = relay.take()
                    span.part("round", tokens=len(step.tokens), drafted=step.commit.drafted)
                    yield step
                if relay.ended:
                    break
                await changed.wait()
                changed.clear()
            if relay.error:
                raise relay.error
        finally:
            relay.end()
            span.end(relay.error)


@asynccontextmanager
async def relaying(
    tls: Tls | None, target: ModelDescription, membership: Membership, registry: Registry
) -> AsyncIterator[Relays]:
    """Yield an object that runs requests inside this context. Requests use only the verifiers that
    serve exactly this target, and only the drafters that have the target's tokenizer.
    """
    verifiers: BalancedLink[ToVerifier, Commit] = BalancedLink()
    drafters: BalancedLink[ToDrafter, EncodedProposal] = BalancedLink()
    to_verifier = partial(_to_verifier, tls, target.identity)
    to_drafter = partial(_to_drafter, tls, registry, verifiers, target.tokenizer_fingerprint)
    drained = asyncio.Event()
    verifiers.drained = drafters.drained = drained.set

    async def follow() -> None:
        async with (
            PerAddress(partial(_linked, verifiers, to_verifier)) as at_verifiers,
            PerAddress(partial(_linked, drafters, to_drafter)) as at_drafters,
        ):
            while True:
                known = membership.now
                await at_verifiers.update(verifiers.retain(known.verifiers))
                await at_drafters.update(drafters.retain(known.drafters))
                await first_done(membership.other_than(known), drained.wait())
                drained.clear()

    async with background(follow(), _leave_outliers(verifiers, drafters)):
        yield Relays(verifiers, drafters)


async def _leave_outliers(*services: BalancedLink[Any, Any]) -> None:
    """Move sessions away from slow replicas, until cancelled."""
    while True:
        await asyncio.sleep(heartbeat.SECONDS)
        for service in services:
            service.leave_outliers(monotonic())


@asynccontextmanager
async def _to_verifier(tls: Tls | None, identity: str, address: str) -> AsyncIterator[VerifierLink]:
    async with (
        rpc.connect(address, tls, "verifier") as channel,
        verifier_link(channel, identity) as link,
    ):
        yield link


@asynccontextmanager
async def _to_drafter(
    tls: Tls | None,
    registry: Registry,
    verifiers: ServiceLink[ToVerifier, Commit],
    tokenizer: str,
    address: str,
) -> AsyncIterator[DrafterLink]:
    if name := registered_name(address):
        async with proposal_link(registry.calling(name), verifiers, tokenizer) as link:
            yield link
        return
    async with (
        rpc.connect(address, tls, "drafter") as channel,
        drafter_link(channel, verifiers, tokenizer) as link,
    ):
        yield link


@asynccontextmanager
async def _linked(
    balanced: BalancedLink[Any, Any],
    make: Callable[[str], AbstractAsyncContextManager[Link[Any, Any]]],
    address: str,
) -> AsyncIterator[None]:
    """Connect to a replica, and keep it in a balanced link inside this context."""
    async with make(address) as link:
        balanced.add(address, link)
        try:
            yield
        finally:
            balanced.remove(address)


def verifier_link(channel: aio.Channel, identity: str = "") -> VerifierLink:
    """Return a link to a verifier, which is used as long as its model has this identity. By
    default, the identity is that of the first model that the verifier reports.
    """
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    return Link(
        "verifier",
        stub.Decode,
        verifier_pb2.DecodeRequest,
        "commits",
        decode_commit,
        check_model=same_model(identity),
    )


def drafter_link(
    channel: aio.Channel, verifier: ServiceLink[ToVerifier, Commit], tokenizer: str = ""
) -> DrafterLink:
    """Return a link to a drafter that listens at a port."""
    return proposal_link(drafter_pb2_grpc.DrafterServiceStub(channel).Propose, verifier, tokenizer)


def proposal_link(
    propose: Callable[..., Any], verifier: ServiceLink[ToVerifier, Commit], tokenizer: str = ""
) -> DrafterLink:
    """Return a link to the drafter that `propose` calls. The link is used as long as the drafter's
    tokenizer has this fingerprint; by default, any tokenizer is accepted. Requests tell the drafter
    which responses were read and, periodically, how busy the verifiers are.
    """
    reported = -inf

    def report(request: drafter_pb2.ProposeRequest) -> None:
        nonlocal reported
        request.read = link.clock
        if link.connected and monotonic() - reported < heartbeat.SECONDS:
            return
        reported = monotonic()
        request.conditions.price, request.conditions.token_seconds = verifier.load
        request.conditions.delay = verifier.round_trip + link.round_trip

    link: DrafterLink = Link(
        "drafter",
        propose,
        drafter_pb2.ProposeRequest,
        "proposals",
        receive_proposal,
        report,
        same_tokenizer(tokenizer),
    )
    return link


def same_model(identity: str = "") -> ModelCheck:
    """Return a check that accepts the model with this identity or, by default, the first model."""
    expected = identity

    def check(model: ModelDescription) -> str | None:
        nonlocal expected
        expected = expected or model.identity
        if model.identity == expected:
            return None
        return f"{model.name} is another model ({model.identity}, expected {expected})"

    return check


def same_tokenizer(fingerprint: str = "") -> ModelCheck:
    """Return a check that accepts models with this tokenizer or, by default, any model."""

    def check(model: ModelDescription) -> str | None:
        if fingerprint in ("", model.tokenizer_fingerprint):
            return None
        prints = f"{model.tokenizer_fingerprint}, expected {fingerprint}"
        return f"{model.name} has another tokenizer ({prints})"

    return check
