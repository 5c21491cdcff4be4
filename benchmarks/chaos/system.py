"""Run several processes of each service, and cause faults in them. A process that ends is
restarted.
"""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tandem.benchmarks.chaos import victim
from tandem.benchmarks.chaos.plan import Fault, Kind
from tandem.benchmarks.peers.checkout import NO_RECENT_ANSWERS, address, python
from tandem.protos.errors import Unusable
from tandem.protos.service.tasks import background
from tandem.protos.transport import rpc

HOST = "127.0.0.1"
VERIFIER, DRAFTER, CELL = "verifier", "drafter", "cell"
MODULES = {
    VERIFIER: "tandem.verifier_service",
    DRAFTER: "tandem.drafter_service",
    CELL: "tandem.orchestrator",
}
QUIET = ("--log-level", "error", "--metrics-port", "0")
START_SECONDS = 90.0
MODEL_SIGNALS = {Kind.HANG: victim.HANG, Kind.SLOW: victim.SLOW, Kind.CRAWL: victim.CRAWL}


@dataclass(slots=True)
class Member:
    """One process of a service. When the process is restarted, it keeps its port."""

    role: str
    flags: Sequence[str]
    port: int
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    _process: Process | None = None

    @property
    def address(self) -> str:
        """The address at which the process serves."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process that is running now."""
        assert self._process
        return self._process.pid

    async def live(self) -> None:
        """Run the process, and restart it whenever it ends. Raises Unusable if the process does not
        serve after its first start.
        """
        module, flags = MODULES[self.role], (*self.flags, "--host", HOST, "--port", str(self.port))
        served = False
        while True:
            async with python("-P", "-m", victim.__name__, module, *flags, *QUIET) as self._process:
                try:
                    await address(self._process)
                except Unusable:
                    if not served:
                        raise
                else:
                    served = True
                    self.serving.set()
                await self._process.wait()
            self.serving.clear()

    async def suffer(self, fault: Fault) -> None:
        """Cause a fault in the process, and return when the fault is over and the process serves
        again.
        """
        if fault.kind in (Kind.KILL, Kind.TERM):
            self.serving.clear()
            self.signal(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
        elif fault.kind is Kind.STOP:
            self.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            self.signal(signal.SIGCONT)
        else:
            number = MODEL_SIGNALS[fault.kind]
            self.signal(number)
            await asyncio.sleep(fault.seconds)
            self.signal(victim.RECOVER)
            await asyncio.sleep(victim.DELAYS.get(number, 0.0))  # let slow steps end
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.serving.wait()
        except TimeoutError:
            problem = f"did not serve again within {START_SECONDS:.0f} s"
            raise Unusable(f"{fault}: the {self.role} {problem}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the process if it is running."""
        assert self._process
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


@dataclass(frozen=True, slots=True)
class System:
    """A running system: its processes by role."""

    members: dict[str, list[Member]]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the cells."""
        return [member.address for member in self.members[CELL]]

    async def suffer(self, fault: Fault) -> None:
        """Cause a fault. Return when the fault is over and the affected process serves again."""
        await self.members[fault.role][fault.index].suffer(fault)


@asynccontextmanager
async def running(
    target: Path,
    draft: Path,
    verifiers: int,
    drafters: int,
    cells: int,
    more: Callable[[], Sequence[str]] = tuple,
) -> AsyncIterator[System]:
    """Run all verifiers, drafters and cells for the duration of the context. `more` returns
    additional command-line flags for each cell. Raises Unusable if the system does not start.
    """

    def of(role: str, count: int, *flags: str) -> list[Member]:
        return [Member(role, flags, rpc.free_port(HOST)) for _ in range(count)]

    models = {
        VERIFIER: of(
            VERIFIER, verifiers, "--model", str(target), "--threads", "1", *NO_RECENT_ANSWERS
        ),
        DRAFTER: of(DRAFTER, drafters, "--model", str(draft), "--threads", "1"),
    }
    known = [f"--{role}={','.join(each.address for each in some)}" for role, some in models.items()]
    known += ["--tokenizer", str(target), "--no-ray"]
    clients = [each for _ in range(cells) for each in of(CELL, 1, *known, *more())]
    system = System(models | {CELL: clients})
    everybody = [member for some in system.members.values() for member in some]
    async with background(*(member.live() for member in everybody)):
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.gather(*(member.serving.wait() for member in everybody))
        except TimeoutError:
            raise Unusable(f"the system did not serve within {START_SECONDS:.0f} s") from None
        yield system
