"""Finds the addresses of replicas. An address is configured directly, or comes from a DNS name or a
file that is looked up periodically.
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

LOOKUP_SECONDS = 1.0  # seconds between two lookups of a source
REMOVAL_THRESHOLD = 5  # an address is removed after this many lookups in a row without it
# lookups have their own threads, because a name server that is down blocks them
RESOLVER_THREADS = ThreadPoolExecutor(2, "names")

log = structlog.get_logger()


@dataclass(slots=True)
class AddressHysteresis:
    """The addresses of one source. An address is removed only after several lookups without it,
    because an overloaded name server or a partly written file may list only some of the addresses.
    """

    # for each address, the number of lookups in a row without it
    _missed: dict[str, int] = field(default_factory=dict)

    def update(self, found: Iterable[str]) -> tuple[str, ...]:
        """Record the addresses that a lookup found, and return the addresses to use."""
        missed = dict.fromkeys(found, 0)
        for address, count in self._missed.items():
            if address not in missed and count + 1 < REMOVAL_THRESHOLD:
                missed[address] = count + 1
        self._missed = missed
        return tuple(missed)


async def resolve(source: str) -> tuple[str, ...]:
    """Look up and return the current addresses of a source. If a name has IPv4 and IPv6 addresses,
    only the IPv4 addresses are returned, so that a replica with both is not returned twice. Raises
    OSError if the source cannot be reached, and ValueError if it contains something that is not an
    address.
    """
    if source.startswith(DNS):
        host, port = split(source.removeprefix(DNS))
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(RESOLVER_THREADS, ask)
        # `min` selects IPv4 if there is any, because AF_INET is the smallest family number
        family = min((each[0] for each in found), default=socket.AF_INET)
        own = {str(address[0]) for kind, *_, address in found if kind == family}
        return tuple(sorted(joined(each, port) for each in own))
    if source.startswith(FILE):
        text = await asyncio.to_thread(Path(source.removeprefix(FILE)).read_text, "utf-8")
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return tuple(dict.fromkeys(joined(*split(line)) for line in lines if line))
    return (source,)


class Discovery:
    """Finds all members: the replicas whose addresses the sources list, and drafters that have
    registered.
    """

    def __init__(self, verifiers: tuple[str, ...], drafters: tuple[str, ...]) -> None:
        self.membership = Membership()
        self._verifiers = verifiers
        self._drafters = drafters
        self._found: dict[str, tuple[str, ...]] = {}
        self._hystereses: dict[str, AddressHysteresis] = defaultdict(AddressHysteresis)
        self._problems: dict[str, str] = {}
        self._registered: dict[str, None] = {}

    def register(self, drafter: str) -> None:
        """Add a registered drafter to the members."""
        self._registered[drafter] = None
        self._publish()

    def unregister(self, drafter: str) -> None:
        """Remove a registered drafter from the members."""
        self._registered.pop(drafter, None)
        self._publish()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Membership]:
        """Look up the sources periodically inside this context. The context is entered after the
        first lookup.
        """
        sources = dict.fromkeys((*self._verifiers, *self._drafters))
        await asyncio.gather(*map(self._refresh, sources))
        async with background(*map(self._watch, sources)):
            yield self.membership

    async def _watch(self, source: str) -> None:
        while source.startswith((DNS, FILE)):
            await asyncio.sleep(LOOKUP_SECONDS)
            await self._refresh(source)

    async def _refresh(self, source: str) -> None:
        """Look up a source once. If the lookup fails, the source keeps its addresses. An address
        that the source no longer contains is kept for a while.
        """
        try:
            found, problem = self._hystereses[source].update(await resolve(source)), ""
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
