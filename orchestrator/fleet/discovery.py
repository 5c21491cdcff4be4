"""Where the addresses of replicas come from: they are given, or a DNS name or a file has them,
which is read again and again.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from tandem.orchestrator.fleet.membership import Members, Membership
from tandem.protos.address import DNS, FILE, joined, split
from tandem.protos.service.tasks import background

LOOKUP_SECONDS = 1.0  # between two lookups of a source
REMOVAL_THRESHOLD = 5  # lookups in a row without an address, after which it is gone
NAMES = ThreadPoolExecutor(2, "names")  # else a dead name server takes the threads of others

log = structlog.get_logger()


@dataclass(slots=True)
class Resolved:
    """The addresses of one source. A name server that is overloaded, or a file that is being
    written, answers with a part of them, so one is removed only after some lookups without it.
    """

    _missed: dict[str, int] = field(default_factory=dict)  # lookups in a row that each was not in

    def after(self, found: Iterable[str]) -> tuple[str, ...]:
        """The addresses that there are after a successful lookup."""
        missed = dict.fromkeys(found, 0)
        for address, count in self._missed.items():
            if address not in missed and count + 1 < REMOVAL_THRESHOLD:
                missed[address] = count + 1
        self._missed = missed
        return tuple(missed)


async def resolve(source: str) -> tuple[str, ...]:
    """The addresses that a source has now; of a name with both families, those of one, as a replica
    has one of each. Raises OSError if it cannot be reached, ValueError if it has
    something that is no address.
    """
    if source.startswith(DNS):
        host, port = split(source.removeprefix(DNS))
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(NAMES, ask)
        family = min((each[0] for each in found), default=socket.AF_INET)  # IPv4 is the lower
        own = {str(address[0]) for kind, *_, address in found if kind == family}
        return tuple(sorted(joined(each, port) for each in own))
    if source.startswith(FILE):
        text = await asyncio.to_thread(Path(source.removeprefix(FILE)).read_text, "utf-8")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return tuple(dict.fromkeys(joined(*split(line)) for line in lines if line))
    return (source,)


class Discovery:
    """All members: those that sources have, and drafters that have registered."""

    def __init__(self, verifiers: tuple[str, ...], drafters: tuple[str, ...]) -> None:
        self.membership = Membership()
        self._verifiers, self._drafters = verifiers, drafters
        self._found: dict[str, tuple[str, ...]] = {}
        self._resolved: dict[str, Resolved] = defaultdict(Resolved)
        self._problems: dict[str, str] = {}
        self._registered: dict[str, None] = {}

    def register(self, drafter: str) -> None:
        """There is one more drafter."""
        self._registered[drafter] = None
        self._publish()

    def unregister(self, drafter: str) -> None:
        """It is gone."""
        self._registered.pop(drafter, None)
        self._publish()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Membership]:
        """Look sources up while the scope lasts; the first lookup is over when it begins."""
        sources = dict.fromkeys((*self._verifiers, *self._drafters))
        await asyncio.gather(*map(self._refresh, sources))
        async with background(*map(self._watch, sources)):
            yield self.membership

    async def _watch(self, source: str) -> None:
        while source.startswith((DNS, FILE)):
            await asyncio.sleep(LOOKUP_SECONDS)
            await self._refresh(source)

    async def _refresh(self, source: str) -> None:
        """Look it up once; a source that cannot be used has what it had, and so has for a while one
        that does not have all of it any more.
        """
        try:
            found, problem = self._resolved[source].after(await resolve(source)), ""
        except (OSError, ValueError) as error:
            found, problem = self._found.get(source, ()), str(error)
        if problem and problem != self._problems.get(source):
            log.warning("cannot look up replicas", source=source, problem=problem)
        self._problems[source] = problem
        if found != self._found.get(source):
            self._found[source] = found
            self._publish()

    def _publish(self) -> None:
        def all_of(sources: Iterable[str]) -> dict[str, None]:
            return {each: None for source in sources for each in self._found.get(source, ())}

        verifiers, drafters = all_of(self._verifiers), all_of(self._drafters) | self._registered
        members = Members(tuple(verifiers), tuple(drafters))
        if members != self.membership.now:
            log.info("members", verifiers=members.verifiers, drafters=members.drafters)
        self.membership.set(members)
