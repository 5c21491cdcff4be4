"""Which replicas there are now, and something that lives for as long as each of them is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Generic, Self, TypeVar

from tandem.protos.rounds import Members

Item = TypeVar("Item")


class Membership:
    """The members now; to be used on one event loop."""

    def __init__(self, members: Members | None = None) -> None:
        self.now = members or Members()
        self._changed = asyncio.Event()

    def set(self, members: Members) -> None:
        """These are the members from now on."""
        if members != self.now:
            self.now = members
            self._changed.set()
            self._changed = asyncio.Event()

    async def other_than(self, known: Members | None) -> Members:
        """The members, once they are not the known ones."""
        while self.now == known:
            await self._changed.wait()
        return self.now


class PerAddress(Generic[Item]):
    """An item for each address, which is entered when the address comes and left when it goes; a
    scope, to be entered and updated by one task.
    """

    def __init__(self, make: Callable[[str], AbstractAsyncContextManager[Item]]) -> None:
        self.items: dict[str, Item] = {}
        self._make = make
        self._scopes: dict[str, AsyncExitStack] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.update(())

    async def update(self, addresses: Iterable[str]) -> None:
        """From now on there are these."""
        wanted = dict.fromkeys(addresses)
        for address in [each for each in wanted if each not in self._scopes]:
            scope = self._scopes[address] = AsyncExitStack()
            self.items[address] = await scope.enter_async_context(self._make(address))
        for address in [each for each in self._scopes if each not in wanted]:
            self.items.pop(address, None)
            await self._scopes.pop(address).aclose()
