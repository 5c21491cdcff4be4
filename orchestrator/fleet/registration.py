"""Registered drafters over gRPC: they connect to the port of the client API, and round workers call
them at an internal port, as if each were there.

A drafter has one call that registers it. For every call of a round worker it is asked to open one
of its own, and the front end passes messages on between the two as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import structlog
from grpc import aio

from tandem.orchestrator.fleet.registered import RegisteredDrafter, Registry
from tandem.protos.errors import InvalidRequest, PermissionDenied, Unavailable
from tandem.protos.service.tasks import first_done
from tandem.protos.tls import Tls
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.key import WORKER_KEY, KeyInterceptor, metadata_value, same
from tandem.protos.transport.raw import RawContext, RawInterceptor, forward
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import encode_model
from tandem.protos.wire.registration import CALL, DRAFTER, TOKEN, decode_registration, split_address
from tandem.v1 import drafter_pb2, drafter_pb2_grpc, registration_pb2, registration_pb2_grpc

GUESS, CARRY = "/tandem.v1.DrafterService/Guess", "/tandem.v1.RegistrationService/Carry"
ANSWER_SECONDS = 5.0  # in which a drafter must send its first message, and carry a call

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Metadata: TypeAlias = Sequence[tuple[str, str]]
Requests: TypeAlias = AsyncIterator[registration_pb2.RegisterRequest]
log = structlog.get_logger()


async def never() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Owner:
    """Who registers drafters, and what returns when it may no more."""

    name: str = ""
    until_revoked: Callable[[], Awaitable[None]] = never


@dataclass(frozen=True, slots=True)
class Terms:
    """Who may register: at most `limit` drafters that have the token, if there is one, for this
    target; `owner` is who makes a call.
    """

    token: str | None
    limit: int
    target: ModelDescription
    owner: Callable[[Context], Owner] = lambda context: Owner()


class RegistrationService(registration_pb2_grpc.RegistrationServiceServicer):
    """Serves drafters."""

    def __init__(self, registry: Registry, terms: Terms) -> None:
        self._registry, self._terms = registry, terms

    async def Register(self, requests: Requests, context: Context) -> None:  # type: ignore[override]
        """A drafter is registered until it ends the call, is silent, or is replaced."""
        given = metadata_value(context.invocation_metadata(), TOKEN)
        if self._terms.token is not None and not same(given, self._terms.token):
            problem = f"{TOKEN} is not the registration token of this front end"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise InvalidRequest.of("request", f"did not come in {ANSWER_SECONDS} s") from None
        name, model = decode_registration(first, self._terms.target)
        owner = self._terms.owner(context)

        async def watch() -> None:
            await owner.until_revoked()
            drafter.revoked = True
            drafter.lost.set()

        with self._registry.registered(name, model, owner.name) as drafter:
            await first_done(
                self._read(requests, drafter),
                _ask(drafter, context),
                drafter.replaced.wait(),
                watch(),
            )
        if drafter.revoked:
            raise PermissionDenied(f"{owner.name} may register no drafters any more")
        if drafter.replaced.is_set():
            raise Unavailable(f"a newer drafter is registered as {name!r}")
        if drafter.lost.is_set():
            raise Unavailable(f"the drafter {name!r} was silent")

    async def _read(self, requests: Requests, drafter: RegisteredDrafter) -> None:
        """Take messages until the drafter ends the call, or is silent."""
        received = 0

        async def read() -> None:
            nonlocal received
            async for request in requests:
                received += 1
                _, drafter.model = decode_registration(request, self._terms.target, drafter.name)

        async def watch() -> None:
            await heartbeat.until_silent(lambda: received)
            drafter.lost.set()

        await first_done(read(), watch())

    async def Carry(self, answers: AsyncIterator[bytes], context: RawContext) -> None:  # type: ignore[override]
        """A drafter's end of a round worker's call, as long as that lasts."""
        name = metadata_value(context.invocation_metadata(), CALL)
        owner = self._terms.owner(context).name
        await self._registry.carry(name, (answers, context), owner).over.wait()


async def _ask(drafter: RegisteredDrafter, context: Context) -> None:
    """Send a drafter the names of calls to carry, and heartbeats, until it is gone."""
    with suppress(aio.BaseError):
        while True:
            await context.write(registration_pb2.RegisterResponse(calls=drafter.take()))
            with suppress(TimeoutError):
                async with asyncio.timeout(heartbeat.SECONDS):
                    await drafter.changed.wait()
            drafter.changed.clear()


class RegisteredDrafters(drafter_pb2_grpc.DrafterServiceServicer):
    """Serves round workers: each call is one to the drafter that its metadata names."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def Guess(self, requests: AsyncIterator[bytes], context: RawContext) -> None:  # type: ignore[override]
        """Pass messages on in both directions until either side ends its call; raises
        Unavailable.
        """
        drafter = self._named(context)
        with self._registry.calling(drafter) as call:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answers, carrier = await call.carrier
            except TimeoutError:
                raise Unavailable(f"the drafter {drafter.name!r} does not answer") from None
            there, back = forward(requests, carrier), forward(answers, context)
            await first_done(there, back, drafter.lost.wait())

    async def DescribeDrafter(
        self, request: drafter_pb2.DescribeDrafterRequest, context: Context
    ) -> drafter_pb2.DescribeDrafterResponse:
        """The model as the drafter described it last."""
        model = encode_model(self._named(context).model)
        return drafter_pb2.DescribeDrafterResponse(model=model)

    def _named(self, context: Context) -> RegisteredDrafter:
        return self._registry.find(metadata_value(context.invocation_metadata(), DRAFTER))


def route(address: str, key: str) -> tuple[str, Metadata]:
    """HOST:PORT to connect to for a drafter, and what its calls have as metadata: `NAME@HOST:PORT`
    is a registered one at its front end, which has given this key to the worker.
    """
    name, place = split_address(address)
    return place, ((DRAFTER, name), (WORKER_KEY, key)) if name else ()


@dataclass(frozen=True, slots=True)
class Access:
    """What the processes of a front end show each other, and the model services."""

    key: str
    tls: Tls | None = None

    def reach(self, address: str, role: str) -> tuple[aio.Channel, Metadata]:
        """A channel to a replica, and what its calls have as metadata."""
        place, metadata = route(address, self.key)
        return rpc.connect(place, self.tls, "orchestrator" if metadata else role), metadata


@asynccontextmanager
async def registrations(
    host: str,
    access: Access,
    terms: Terms,
    added: Callable[[str], None] = lambda address: None,
    removed: Callable[[str], None] = lambda address: None,
) -> AsyncIterator[RegistrationService]:
    """What drafters register at while the scope lasts, to be served with `RawInterceptor(CARRY)`;
    its registered drafters serve who has the key, at an internal port of this host. `added` and
    `removed` are called with the `NAME@HOST:PORT` of a drafter.
    """

    def on_added(name: str) -> None:
        log.info("a drafter is registered", drafter=name)
        added(f"{name}@{place}")

    def on_removed(name: str) -> None:
        log.info("a drafter is no longer registered", drafter=name)
        removed(f"{name}@{place}")

    registry = Registry(terms.limit, on_added, on_removed)
    drafters = RegisteredDrafters(registry)
    protected = KeyInterceptor(access.key), RawInterceptor(GUESS)
    security = rpc.Security(access.tls)
    async with rpc.serving(host, 0, drafters, *protected, security=security) as place:
        yield RegistrationService(registry, terms)
