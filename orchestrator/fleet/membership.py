"""The replicas that are in use now, and the state of each replica, such as its connection or the
counts of a drafter's tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Members:
    """The addresses of all replicas that are to be used."""

    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()


class Membership:
    """The current members. Use a membership on one event loop only."""

    def __init__(self, members: Members | None = None) -> None:
        self.now = members or Members()
        self._changed = asyncio.Event()

    def set(self, members: Members) -> None:
        """Set the current members, and wake the tasks that wait for a change."""
        if members != self.now:
            self.now = members
            self._changed.set()
            self._changed = asyncio.Event()

    async def other_than(self, known: Members | None) -> Members:
        """Wait until the members differ from `known`, and return them."""
        while self.now == known:
            await self._changed.wait()
        return self.now


class PerAddress(Generic[Item]):
    """A context manager that holds one item, such as a connection, for each address. Each item is
    itself a context manager, which is entered when its address is added and exited when its address
    is removed. Each item is entered and exited in its own task, so that no item waits for another.
    Only one task may enter and update a `PerAddress`.
    """

    def __init__(self, make: Callable[[str], AbstractAsyncContextManager[Item]]) -> None:
        self.items: dict[str, Item] = {}
        self._make = make
        self._group = asyncio.TaskGroup()
        self._gone: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for gone in self._gone.values():
            gone.set()
        self.items.clear()
        await self._group.__aexit__(*error)

    async def update(self, addresses: Iterable[str]) -> None:
        """Replace the set of addresses. Returns when the items of all addresses are entered. Items
        of removed addresses may still be exiting.
        """
        wanted = dict.fromkeys(addresses)
        for address in [each for each in self._gone if each not in wanted]:
            self.items.pop(address, None)
            self._gone.pop(address).set()
        entering: list[asyncio.Event] = []
        for address in [each for each in wanted if each not in self._gone]:
            gone, entered = asyncio.Event(), asyncio.Event()
            older = self._tasks.get(address)
            keeping = self._keep(address, gone, entered, older)
            self._gone[address], entering = gone, [*entering, entered]
            self._tasks[address] = self._group.create_task(keeping)
        for entered in entering:
            await entered.wait()

    async def _keep(
        self,
        address: str,
        gone: asyncio.Event,
        entered: asyncio.Event,
        older: asyncio.Task[None] | None,
    ) -> None:
        """Enter the item of `address` once an older item of this address has exited, and exit the
        item when the address is removed.
        """
        if older:
            await asyncio.wait((older,))
        async with self._make(address) as item:
            self.items[address] = item
            entered.set()
            await gone.wait()
        if self._tasks.get(address) is asyncio.current_task():
            del self._tasks[address]


class Acceptance:
    """Counts each drafter's verified and accepted draft tokens, by the drafter's address. The
    counts are kept while the drafter is a member.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, drafter: str, verified: int, accepted: int) -> None:
        """Count the verified and accepted draft tokens of one step. A drafter that is not a member
        is ignored.
        """
        if known := self._counts.get(drafter):
            self._counts[drafter] = known[0] + verified, known[1] + accepted

    def of(self, drafter: str) -> tuple[int, int]:
        """Return the numbers of a drafter's verified and accepted draft tokens."""
        return self._counts.get(drafter, (0, 0))

    def retain(self, drafters: Collection[str]) -> None:
        """Keep the counts of `drafters`, and discard the counts of all other drafters."""
        self._counts = {each: self.of(each) for each in drafters}
