"""Drafters that are registered, by their names, and the calls that each is to carry.

Decides who is registered; what is sent and received is the business of `registration`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tandem.protos.errors import Busy, InvalidRequest, PermissionDenied, Unavailable
from tandem.protos.transport.raw import RawContext
from tandem.protos.types import ModelDescription

RETRY_SECONDS = 5.0  # after which a drafter that found no place may try again
MAX_CARRIED = 64  # calls to one drafter at once; each round worker has one

Ends = tuple[AsyncIterator[bytes], RawContext]


@dataclass(slots=True, eq=False)
class CarriedCall:
    """A round worker's call to a drafter, which the drafter is to carry on a call of its own."""

    owner: str  # of the drafter
    carrier: asyncio.Future[Ends]  # what arrives on that call, and where to write
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class RegisteredDrafter:
    """One registration, while it lasts."""

    name: str
    model: ModelDescription
    owner: str = ""  # who registered it, where callers are known
    asked: list[str] = field(default_factory=list)  # calls to carry that were not sent yet
    carried: int = 0  # calls that are carried, or to be carried
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    replaced: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)  # so are its calls
    revoked: bool = False

    def take(self) -> list[str]:
        """Names of calls to carry, once."""
        asked, self.asked = self.asked, []
        return asked


class Registry:
    """At most `limit` drafters; to be used on one event loop."""

    def __init__(
        self, limit: int, added: Callable[[str], None], removed: Callable[[str], None]
    ) -> None:
        """`added` and `removed` are called with the name of a drafter."""
        self._limit, self._added, self._removed = limit, added, removed
        self._drafters: dict[str, RegisteredDrafter] = {}
        self._waiting: dict[str, CarriedCall] = {}

    @contextmanager
    def registered(
        self, name: str, model: ModelDescription, owner: str = ""
    ) -> Iterator[RegisteredDrafter]:
        """A drafter is registered while the scope lasts, unless a newer one of its name and owner
        comes: the same device, connected again. Raises Busy, and PermissionDenied if the name is
        that of another owner's.
        """
        older = self._drafters.get(name)
        if older and older.owner != owner:
            raise PermissionDenied(f"another client's drafter is registered as {name!r}")
        if not older and len(self._drafters) >= self._limit:
            raise Busy(f"max_registered is {self._limit}, and as many are", RETRY_SECONDS)
        if older:
            older.replaced.set()
            older.lost.set()
            self._remove(older)
        drafter = self._drafters[name] = RegisteredDrafter(name, model, owner)
        try:
            self._added(name)
            yield drafter
        finally:
            self._remove(drafter)

    def find(self, name: str) -> RegisteredDrafter:
        """The drafter of that name; raises Unavailable."""
        if drafter := self._drafters.get(name):
            return drafter
        raise Unavailable(f"no drafter is registered as {name!r}")

    @contextmanager
    def calling(self, drafter: RegisteredDrafter) -> Iterator[CarriedCall]:
        """A call that the drafter is asked to carry; it is over at the end of the scope. Raises
        Busy.
        """
        if drafter.carried >= MAX_CARRIED:
            most = (
                f"{MAX_CARRIED} calls to the drafter {drafter.name!r} are carried, the most at once"
            )
            raise Busy(most, RETRY_SECONDS)
        call = CarriedCall(drafter.owner, asyncio.get_running_loop().create_future())
        name = secrets.token_hex(16)
        self._waiting[name] = call
        drafter.carried += 1
        drafter.asked.append(name)
        drafter.changed.set()
        try:
            yield call
        finally:
            drafter.carried -= 1
            self._waiting.pop(name, None)
            call.over.set()

    def carry(self, name: str, ends: Ends, owner: str = "") -> CarriedCall:
        """A drafter carries the call of that name; raises InvalidRequest if it was not asked to, or
        does already.
        """
        call = self._waiting.get(name)
        if call is None or call.owner != owner:
            raise InvalidRequest.of("x-tandem-call", "names no call that is to be carried")
        del self._waiting[name]
        if not call.carrier.done():
            call.carrier.set_result(ends)
        return call

    def _remove(self, drafter: RegisteredDrafter) -> None:
        if self._drafters.get(drafter.name) is drafter:
            del self._drafters[drafter.name]
            self._removed(drafter.name)
