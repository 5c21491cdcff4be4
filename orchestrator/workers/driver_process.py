"""Ray as a front end sees it: a process of its own that drives it, and is started again whenever it
has ended. Until its round workers run, the one in reserve does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from time import monotonic
from typing import Any

import structlog

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.workers import cluster, driver, local
from tandem.orchestrator.workers.supervisor import ReserveSupervisor, Supervising
from tandem.protos.errors import Unavailable, Unusable
from tandem.protos.service.process import announcement
from tandem.protos.service.tasks import background, first_done
from tandem.protos.transport import rpc
from tandem.protos.types import ModelDescription

JOIN_SECONDS = 30.0  # Ray itself goes on for minutes
STOP_SECONDS = 2 * rpc.DRAIN_SECONDS + 10
PAUSES = (1.0, 60.0)  # the first and the longest before another start
SILENT_SECONDS = 55.0  # without an answer for any round worker: this Ray has none any more

log = structlog.get_logger()


class DriverProcess:
    """What it is asked, while it lives."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self._config = config
        self._joins = config.ray_address != cluster.LOCAL
        self._input: asyncio.StreamWriter | None = None  # of one that has Ray
        self._given = b""
        self._placed = asyncio.Event()
        self._host: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._numbers = count()
        self._missed: dict[int, float] = {}  # since when, of workers whose address is asked for
        self._silent = asyncio.Event()
        self._problem = ""

    async def joined(self) -> None:
        """Wait for a cluster that is to be joined; raises Unusable. A private one may take its
        time.
        """
        if self._joins:
            problem = f"cannot join the Ray cluster at {self._config.ray_address}"
            try:
                await asyncio.wait_for(asyncio.shield(self._host), JOIN_SECONDS)
            except TimeoutError:
                raise Unusable(f"{problem}: no answer in {JOIN_SECONDS:.0f} s") from None
            except Unavailable as error:
                raise Unusable(f"{problem}: {error}") from None

    @asynccontextmanager
    async def supervising(
        self, config: OrchestratorConfig, target: ModelDescription
    ) -> AsyncIterator[ReserveSupervisor]:
        """Its round workers, placed as soon as it has Ray."""
        async with local.supervising(config, target) as reserve:
            self._given = driver.packed((reserve.access, target))
            self._place()
            host = self._host.result() if self._joins else reserve.host
            yield ReserveSupervisor(self, config.workers, reserve, host)

    async def endpoint(self, index: int) -> str:
        """The address of worker `index`; raises Unavailable if Ray is lost meanwhile."""
        await self._placed.wait()
        number = next(self._numbers)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._missed.setdefault(index, monotonic())
        self._tell(endpoint=index, number=number)
        try:
            address = await answer
        finally:
            del self._asked[number]
        self._missed.pop(index, None)
        return address

    def restart(self, index: int) -> None:
        """Have Ray restart a worker that does not answer; and Ray itself, if none does."""
        self._tell(restart=index)
        missed = self._missed.values()
        if len(missed) == self._config.workers and monotonic() - max(missed) > SILENT_SECONDS:
            self._problem = "no round worker answers"
            self._silent.set()

    async def live(self) -> None:
        """Start it again and again."""
        pause, longest = shortest, _ = PAUSES
        while True:
            began = monotonic()
            await self._run()
            if monotonic() - began > longest:
                pause = shortest
            problem, what = self._problem, "Ray is lost"
            if not self._host.done():
                if self._joins:
                    self._host.set_exception(Unavailable(problem))
                    return
                what = "Ray did not start"
            log.warning(what, problem=problem, again_in_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _run(self) -> None:
        """One life of the process, until it ends or is of no use."""
        self._problem = "its driver has ended"
        async with self._process() as process:
            await first_done(self._listen(process), self._silent.wait())

    async def _listen(self, process: Process) -> None:
        """Receive what it announces until it ends."""
        assert process.stdout
        async for line in process.stdout:
            if fact := announcement(line):
                self._receive(process, fact)

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Process]:
        """It, while the scope lasts."""
        command = sys.executable, "-P", "-m", driver.__name__
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        assert process.stdin and process.stdout
        try:
            process.stdin.write(driver.packed(self._config))
            yield process
        finally:
            if self._input is None and not process.stdout.at_eof():
                with suppress(ProcessLookupError):
                    process.terminate()  # it starts Ray, and reads nothing yet
            self._forget()
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()

    def _receive(self, process: Process, fact: Mapping[str, Any]) -> None:
        """One announcement."""
        if fact["event"] == driver.JOINED:
            self._input = process.stdin
            if not self._host.done():
                self._host.set_result(fact["host"])
            self._place()
        elif fact["event"] == driver.FAILED:
            self._problem = fact["problem"]
        elif (answer := self._asked.get(fact.get("number", -1))) and not answer.done():
            if fact["event"] == driver.LOST:
                answer.set_exception(Unavailable(f"a round worker is lost: {fact['problem']}"))
            else:
                answer.set_result(fact["address"])

    def _place(self) -> None:
        """Have round workers placed, if it has Ray and is wanted."""
        if self._input and self._given and not self._placed.is_set():
            self._input.write(self._given)
            self._placed.set()

    def _tell(self, **command: int) -> None:
        if self._input:
            self._input.write(json.dumps(command).encode() + b"\n")

    def _forget(self) -> None:
        """It has ended, and with it what it was asked."""
        self._input = None
        self._placed.clear()
        self._silent.clear()
        self._missed.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Unavailable("Ray is lost"))


@asynccontextmanager
async def driving(config: OrchestratorConfig) -> AsyncIterator[Supervising]:
    """Such a process while the scope lasts; raises Unusable if it cannot join a cluster."""
    process = DriverProcess(config)
    async with background(process.live()):
        await process.joined()
        yield process.supervising
