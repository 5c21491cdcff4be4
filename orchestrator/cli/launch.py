"""The command `tandem up`: run all three services on this machine, each as a process that is
watched and restarted.

If a service dies before it has ever served, the command ends with that service's one-line error. A
service that dies later is restarted on the same port. The services end whenever this process ends,
for whatever reason.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from signal import Signals

from tandem.orchestrator.cli.plan import Plan
from tandem.protos.errors import Unusable
from tandem.protos.service import process
from tandem.protos.service.config import FILE

DRAIN_SECONDS = 5.0  # seconds for running requests to finish when `tandem up` is stopped
GRACE_SECONDS = 20.0  # seconds from the second signal until a service is killed
# seconds before the first restart; the pause doubles after every start that fails
PAUSE_SECONDS = 1.0
MAX_FAILED_STARTS = 6  # failed starts in a row after which `tandem up` ends
# seconds until the first report on services that are still loading; the interval then doubles
REMIND_SECONDS = 5.0

Report = Callable[[str, dict[str, str]], None]


@dataclass(slots=True)
class Service:
    """One child process, and the command line with which it is started and restarted."""

    role: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    stage: str = "starting"  # the newest event that the service announced
    serving: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self, report: Report) -> None:
        """Run the child, and restart it whenever it ends. Raises Unusable if the child dies before
        it has ever served, or after MAX_FAILED_STARTS failed starts in a row.
        """
        failed = 0
        while True:
            served, problem = await self._once(report)
            if not self.serving.is_set():
                raise Unusable(problem)
            failed = 0 if served else failed + 1
            if failed == MAX_FAILED_STARTS:
                often = f"the {self.role} did not restart in {failed} attempts"
                raise Unusable(f"{often}: {problem}")
            report("restarting", {"role": self.role})
            await asyncio.sleep(PAUSE_SECONDS * 2**failed)

    async def stop(self) -> None:
        """Ask the child to end and wait for its end. If the child does not end in time, kill it."""
        if self.process is None or self.process.returncode is not None:
            return
        for end, seconds in (
            (self.process.terminate, DRAIN_SECONDS),
            (self.process.terminate, GRACE_SECONDS),  # a second signal ends the service at once
            (self.process.kill, None),
        ):
            with suppress(ProcessLookupError):
                end()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), seconds)
                return

    async def _once(self, report: Report) -> tuple[bool, str]:
        """Run the child until it ends. Returns whether the child served, and why it ended."""
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
            env=os.environ | self.environment | {process.CHILD: "1"},
            # shields the children from Ctrl-C, because this process stops them in order
            start_new_session=True,
        )
        served, problem = await self._listen(report)
        code = await self.process.wait()
        how = f"with exit code {code}" if code >= 0 else f"by {Signals(-code).name}"
        return served, problem or f"the {self.role} ended {how}"

    async def _listen(self, report: Report) -> tuple[bool, str]:
        """Report the child's announcements until it ends. Returns whether the child served, and its
        startup error, or an empty string if there was none.
        """
        served, problem = False, ""
        assert self.process is not None and self.process.stdout is not None
        async for line in self.process.stdout:
            fields = process.announcement(line)
            if fields is None:  # not an announcement, but output of a library
                sys.stderr.write(line.decode(errors="replace"))
                continue
            event = self.stage = fields.pop("event")
            if event == "failed":
                problem = fields["problem"]
                continue
            report(event, fields | {"role": self.role})
            if event == "serving":
                self.address, served = fields["address"], True
                self.serving.set()
        return served, problem


@dataclass(frozen=True, slots=True)
class Tandem:
    """A running system, with the address at which the service of each role listens."""

    addresses: dict[str, str]


@asynccontextmanager
async def up(plan: Plan, report: Report = lambda event, fields: None) -> AsyncIterator[Tandem]:
    """Start all services, and enter the context once all of them serve. Stop the services when the
    context exits. Raises Unusable if a service fails to start or cannot be kept running.
    """
    more = {FILE: str(plan.config)} if plan.config else {}
    services = [
        # -P: never import modules from the working directory
        Service(role, [sys.executable, "-P", "-m", module, *flags], more)
        for role, module, flags in plan.services()
    ]
    if plan.translates:
        report("translating", {"role": "drafter"})
    try:
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(service.live(report)) for service in services]
            reminding = group.create_task(_remind(services, report))
            for service in services:
                await service.serving.wait()
            reminding.cancel()
            yield Tandem({service.role: service.address for service in services})
            for life in lives:
                life.cancel()
    except BaseExceptionGroup as errors:  # the first error has ended all other tasks
        raise errors.exceptions[0] from None
    finally:
        # the orchestrator stops first, because it closes its sessions at the other services
        await services[-1].stop()
        await asyncio.gather(*(service.stop() for service in services))


async def _remind(services: list[Service], report: Report) -> None:
    """Report the services that are not serving yet, at increasing intervals."""
    passed, pause = 0.0, REMIND_SECONDS
    while True:
        await asyncio.sleep(pause)
        passed, pause = passed + pause, 2 * pause
        for service in services:
            if not service.serving.is_set():
                report(service.stage, {"role": service.role, "seconds": f"{passed:.0f}"})


async def run(plan: Plan, report: Report, ready: Callable[[str], None]) -> None:
    """Run all services until cancelled. Once all services serve, call `ready` with the address of
    the client API. Raises Unusable if a service fails to start or cannot be kept running.
    """
    async with up(plan, report) as tandem:
        ready(tandem.addresses["orchestrator"])
        await process.until_cancelled()
