"""Registered drafters: each connects to the port of the client API, and serves the cell's requests
on the very call that registers it, as if the cell had called the drafter.
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

ANSWER_SECONDS = 5.0  # in which a drafter must send its first message
RETRY_SECONDS = 5.0  # after which a drafter that found no place may try again

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Requests: TypeAlias = AsyncIterator[registration_pb2.RegisterRequest]
Reported: TypeAlias = Callable[[str], None]
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


@dataclass(slots=True, eq=False)
class RegisteredDrafter:
    """One registration, while it lasts: to a link it is the call of `DrafterService.Guess` that it
    would have made, once.
    """

    name: str
    model: ModelDescription
    owner: str
    requests: Requests
    context: Context
    receive: Callable[[RegisteredDrafter, registration_pb2.RegisterRequest], None]
    called: bool = False
    leaving: bool = False
    why: str = ""  # it is over
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_for_connection(self) -> None:
        """It is connected."""

    async def write(self, request: drafter_pb2.GuessRequest) -> None:
        """Send a request."""
        await self.context.write(registration_pb2.RegisterResponse(request=request))

    async def done_writing(self) -> None:
        """There are no more requests: the registration is over."""
        self.end()

    def cancel(self) -> None:
        """It is not used any more."""
        self.end("it was silent, or did not read")

    def end(self, why: str = "") -> None:
        """The registration is over, for this reason if it is not over already."""
        if not self.over.is_set():
            self.why = why
            self.over.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> drafter_pb2.GuessResponse:
        message = await anext(self.requests)
        self.receive(self, message)
        return message.response


class Registry:
    """The drafters that are registered, by their names; to be used on one event loop."""

    def __init__(self, added: Reported, removed: Reported) -> None:
        """`added` and `removed` are called with the address of a drafter that may get sessions, or
        may no more.
        """
        self._added, self._removed = added, removed
        self._drafters: dict[str, RegisteredDrafter] = {}

    def __len__(self) -> int:
        return len(self._drafters)

    def find(self, name: str) -> RegisteredDrafter:
        """The drafter of that name; raises Unavailable."""
        if drafter := self._drafters.get(name):
            return drafter
        raise Unavailable(f"no drafter is registered as {name!r}")

    def calling(self, name: str) -> Callable[..., RegisteredDrafter]:
        """What makes its call, once for each registration; raises Unavailable."""

        def call(**options: Any) -> RegisteredDrafter:
            drafter = self.find(name)
            if drafter.called:
                raise Unavailable(f"the drafter {name!r} has to register again")
            drafter.called = True
            return drafter

        return call

    @contextmanager
    def registered(self, drafter: RegisteredDrafter, limit: int) -> Iterator[None]:
        """A drafter is registered while the scope lasts, unless a newer one of its name and owner
        comes: the same device, connected again. Raises Busy, and PermissionDenied if the name is
        that of another owner's.
        """
        name = drafter.name
        older = self._drafters.get(name)
        if older and older.owner != drafter.owner:
            raise PermissionDenied(f"another client's drafter is registered as {name!r}")
        if not older and len(self._drafters) >= limit:
            raise Busy(f"max_registered is {limit}, and as many are", RETRY_SECONDS)
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
        """It gets no new sessions, or does again."""
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
        drafter = RegisteredDrafter(name, model, owner.name, requests, context, self._receive)

        async def watch() -> None:
            await owner.until_revoked()
            drafter.end("revoked")

        with self._registry.registered(drafter, self._terms.limit):
            await first_done(drafter.over.wait(), watch())
        if drafter.why == "revoked":
            raise PermissionDenied(f"{owner.name} may register no drafters any more")
        if drafter.why:
            raise Unavailable(f"the drafter {name!r} is not registered any more: {drafter.why}")

    def _receive(
        self, drafter: RegisteredDrafter, message: registration_pb2.RegisterRequest
    ) -> None:
        """Take in what a message says of the drafter itself."""
        if message.HasField("model"):
            drafter.model = decode_described(message, self._terms.target)
        self._registry.leave(drafter, message.leaving)
