"""Several of each service in processes of their own, started again whenever they end, and what may
happen to them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tandem.benchmarks.chaos import victim
from tandem.benchmarks.chaos.plan import Fault, Kind
from tandem.protos.errors import Unusable
from tandem.protos.service.process import CHILD, announcement
from tandem.protos.transport import rpc

HOST = "127.0.0.1"
VERIFIER, DRAFTER, FRONT_END = "verifier", "drafter", "front end"
MODULES = {
    VERIFIER: "tandem.verifier_service",
    DRAFTER: "tandem.drafter_service",
    FRONT_END: "tandem.orchestrator",
}
QUIET = ("--log-level", "error", "--metrics-port", "0")
START_SECONDS, GRACE_SECONDS = 90.0, 20.0
MODEL_SIGNALS = {Kind.HANG: victim.HANG, Kind.SLOW: victim.SLOW, Kind.CRAWL: victim.CRAWL}


@dataclass(slots=True)
class Member:
    """One process, on a port of its own for ever."""

    role: str
    flags: Sequence[str]
    port: int
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    starts: int = 0
    _process: Process | None = None

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"{HOST}:{self.port}"

    async def live(self) -> None:
        """Run it again and again; raises Unusable if it never served."""
        while True:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", victim.__name__, MODULES[self.role]),
                *(*self.flags, "--host", HOST, "--port", str(self.port), *QUIET),
                stdin=PIPE,
                stdout=PIPE,
                env=os.environ | {CHILD: "1"},
                start_new_session=True,
            )
            assert self._process.stdout
            async for line in self._process.stdout:
                fact = announcement(line)
                if fact and fact["event"] == "serving":
                    self.starts += 1
                    self.serving.set()
            await self._process.wait()
            self.serving.clear()
            if not self.starts:
                raise Unusable(f"a {self.role} did not start")

    async def suffer(self, fault: Fault) -> None:
        """Have it happen; returns when it is over and the process serves again."""
        if fault.kind in (Kind.KILL, Kind.TERM):
            self.serving.clear()
            self._signal(signal.SIGKILL if fault.kind is Kind.KILL else signal.SIGTERM)
        elif fault.kind is Kind.STOP:
            self._signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            self._signal(signal.SIGCONT)
        else:
            self._signal(MODEL_SIGNALS[fault.kind])
            await asyncio.sleep(fault.seconds)
            self._signal(victim.RECOVER)
        async with asyncio.timeout(START_SECONDS):
            await self.serving.wait()

    async def end(self) -> None:
        """Close its standard input and wait; kill it if it does not go."""
        if self._process is None or self._process.returncode is not None:
            return
        assert self._process.stdin
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), GRACE_SECONDS)
        except TimeoutError:
            self._process.kill()

    def _signal(self, number: int) -> None:
        assert self._process
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


@dataclass(frozen=True, slots=True)
class System:
    """Members by role."""

    members: dict[str, list[Member]]

    @property
    def addresses(self) -> list[str]:
        """Of the front ends."""
        return [member.address for member in self.members[FRONT_END]]

    async def suffer(self, fault: Fault) -> None:
        """Have a fault happen; returns when all is well again."""
        await self.members[fault.role][fault.index].suffer(fault)


@asynccontextmanager
async def running(
    target: Path, draft: Path, verifiers: int, drafters: int, front_ends: int
) -> AsyncIterator[System]:
    """A whole system while the scope lasts; raises Unusable if it does not start."""

    def of(role: str, count: int, *flags: str) -> list[Member]:
        return [Member(role, flags, rpc.free_port(HOST)) for _ in range(count)]

    models = {
        VERIFIER: of(VERIFIER, verifiers, "--model", str(target), "--threads", "1"),
        DRAFTER: of(DRAFTER, drafters, "--model", str(draft), "--threads", "1"),
    }
    known = [f"--{role}={','.join(each.address for each in some)}" for role, some in models.items()]
    clients = of(FRONT_END, front_ends, *known, "--tokenizer", str(target), "--no-ray")
    system = System(models | {FRONT_END: clients})
    everybody = [member for some in system.members.values() for member in some]
    living = [asyncio.create_task(member.live()) for member in everybody]
    try:
        started = asyncio.create_task(_all_serve(everybody))
        await asyncio.wait((started, *living), return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            started.cancel()
            raise Unusable("a service did not start; its own line above says why")
        started.result()
        yield system
    finally:
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)
        await asyncio.gather(*(member.end() for member in everybody))


async def _all_serve(members: Sequence[Member]) -> None:
    """Return when they do; raises Unusable."""
    try:
        async with asyncio.timeout(START_SECONDS):
            for member in members:
                await member.serving.wait()
    except TimeoutError:
        raise Unusable(f"the system did not serve within {START_SECONDS:.0f} s") from None
