"""Registered drafters. A drafter registers with a call to the port of the client API. The cell's
requests reach the drafter over the same call, so the cell never has to connect to the drafter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import grpc
import structlog
from grpc import aio

from tandem.protos.errors import Busy, InvalidRequest, PermissionDenied, Unavailable
from tandem.protos.service.tasks import first_done
from tandem.protos.transport.guard import metadata_value, same
from tandem.protos.types import ModelDescription
from tandem.protos.wire.registration import (
    REGISTERED,
    TOKEN,
    decode_described,
    decode_registration,
)
from tandem.v1 import drafter_pb2, registration_pb2, registration_pb2_grpc

ANSWER_SECONDS = 5.0  # seconds within which a drafter must send its first message
RETRY_SECONDS = 5.0  # seconds after which a drafter may retry if too many are registered

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Requests: TypeAlias = AsyncIterator[registration_pb2.RegisterRequest]
Reported: TypeAlias = Callable[[str], None]
log = structlog.get_logger()


async def never() -> None:
    """Wait until cancelled, for a client whose right to register drafters is never revoked."""
    await asyncio.Event().wait()


@dataclass(frozen=True, slots=True)
class Owner:
    """The client that registers drafters. `until_revoked` returns when the client is no longer
    allowed to register drafters.
    """

    name: str = ""
    until_revoked: Callable[[], Awaitable[None]] = never


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which drafters register: there may be at most `limit` drafters, their models
    must fit the target, and they need the token if there is one. `owner` returns the client that
    makes a call.
    """

    token: str | None
    limit: int
    target: ModelDescription
    owner: Callable[[Context], Owner] = lambda context: Owner()


@dataclass(slots=True, eq=False)
class RegisteredDrafter:
    """An active registration of a drafter. A link uses the registration instead of calling
    `DrafterService.Propose`. Each registration can be used only once.
    """

    name: str
    model: ModelDescription
    owner: str
    requests: Requests
    context: Context
    receive: Callable[[RegisteredDrafter, registration_pb2.RegisterRequest], None]
    called: bool = False
    leaving: bool = False
    why: str = ""  # reason why the registration is over
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_connection(self) -> None:
        """Return at once, because a registered drafter is already connected."""

    async def write(self, request: drafter_pb2.ProposeRequest) -> None:
        """Send the drafter a request."""
        await self.context.write(registration_pb2.RegisterResponse(request=request))

    async def done_writing(self) -> None:
        """End the registration, because there are no more requests."""
        self.end()

    def cancel(self) -> None:
        """End the registration, because the link no longer uses it."""
        self.end("the drafter was silent or did not read its messages")

    def end(self, why: str = "") -> None:
        """End the registration for the reason `why`, unless it is over already."""
        if not self.over.is_set():
            self.why = why
            self.over.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> drafter_pb2.ProposeResponse:
        message = await anext(self.requests)
        self.receive(self, message)
        return message.response


class Registry:
    """The registered drafters, by their names. Use a registry on one event loop only."""

    def __init__(self, added: Reported, removed: Reported) -> None:
        """`added` is called with the address of a drafter that may get sessions from now on.
        `removed` is called with the address of a drafter that may get no more sessions.
        """
        self._added = added
        self._removed = removed
        self._drafters: dict[str, RegisteredDrafter] = {}

    def __len__(self) -> int:
        return len(self._drafters)

    def find(self, name: str) -> RegisteredDrafter:
        """Return the drafter that is registered as `name`; raises Unavailable if there is none."""
        if drafter := self._drafters.get(name):
            return drafter
        raise Unavailable(f"no drafter is registered as {name!r}")

    def calling(self, name: str) -> Callable[..., RegisteredDrafter]:
        """Return a function that a link calls in place of the RPC `Propose`. The function returns
        the registered drafter. It raises Unavailable if no drafter has this name, or if its
        registration has been used already.
        """

        def call(**options: Any) -> RegisteredDrafter:
            drafter = self.find(name)
            if drafter.called:
                raise Unavailable(f"the drafter {name!r} has to register again")
            drafter.called = True
            return drafter

        return call

    @contextmanager
    def registered(self, drafter: RegisteredDrafter, limit: int) -> Iterator[None]:
        """Keep a drafter registered inside this context. The registration ends early if a newer
        drafter with the same name and owner registers. Raises Busy if `limit` drafters are already
        registered, and PermissionDenied if another owner's drafter has the name.
        """
        name = drafter.name
        older = self._drafters.get(name)
        if older and older.owner != drafter.owner:
            raise PermissionDenied(f"another client's drafter is registered as {name!r}")
        if not older and len(self._drafters) >= limit:
            problem = f"{limit} drafters are registered, the most that max_registered allows"
            raise Busy(problem, RETRY_SECONDS)
        if older:
            older.end(f"a newer drafter is registered as {name!r}")
            self._remove(older)
        self._drafters[name] = drafter
        log.info("a drafter is registered", drafter=name)
        self._added(name + REGISTERED)
        try:
            yield
        finally:
            drafter.end()
            self._remove(drafter)

    def leave(self, drafter: RegisteredDrafter, leaving: bool) -> None:
        """If the drafter is `leaving`, stop giving it new sessions. Otherwise, give it new sessions
        again.
        """
        if self._drafters.get(drafter.name) is drafter and leaving != drafter.leaving:
            drafter.leaving = leaving
            (self._removed if leaving else self._added)(drafter.name + REGISTERED)

    def _remove(self, drafter: RegisteredDrafter) -> None:
        if self._drafters.get(drafter.name) is drafter:
            del self._drafters[drafter.name]
            log.info("a drafter is no longer registered", drafter=drafter.name)
            if not drafter.leaving:
                self._removed(drafter.name + REGISTERED)


class RegistrationService(registration_pb2_grpc.RegistrationServiceServicer):
    """The gRPC service at which drafters register."""

    def __init__(self, registry: Registry, terms: Terms) -> None:
        self._registry = registry
        self._terms = terms

    async def Register(self, requests: Requests, context: Context) -> None:  # type: ignore[override]
        """Keep a drafter registered until it ends the call, is silent, or is replaced."""
        given = metadata_value(context.invocation_metadata(), TOKEN)
        if self._terms.token is not None and not same(given, self._terms.token):
            problem = f"{TOKEN} is not the registration token of this front end"
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise InvalidRequest.of("request", f"did not arrive in {ANSWER_SECONDS} s") from None
        name, model = decode_registration(first, self._terms.target)
        owner = self._terms.owner(context)
        drafter = RegisteredDrafter(name, model, owner.name, requests, context, self._receive)

        async def watch() -> None:
            await owner.until_revoked()
            drafter.end("revoked")

        with self._registry.registered(drafter, self._terms.limit):
            await first_done(drafter.over.wait(), watch())
        if drafter.why == "revoked":
            raise PermissionDenied(f"{owner.name} is no longer allowed to register drafters")
        if drafter.why:
            raise Unavailable(f"the drafter {name!r} is not registered any more: {drafter.why}")

    def _receive(
        self, drafter: RegisteredDrafter, message: registration_pb2.RegisterRequest
    ) -> None:
        """Update the drafter's model and its `leaving` state from its message."""
        if message.HasField("model"):
            drafter.model = decode_described(message, self._terms.target)
        self._registry.leave(drafter, message.leaving)
