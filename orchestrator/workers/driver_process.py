"""The front end's end of Ray's driver, a process that is started again whenever it has ended. Until
its round workers run, the one in reserve does.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from math import inf
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import structlog

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.workers import cluster, driver, local
from tandem.orchestrator.workers.supervisor import ReserveSupervisor, Supervising
from tandem.protos.cancelled import is_cancelled
from tandem.protos.errors import Unavailable, Unusable
from tandem.protos.service.process import announcement
from tandem.protos.service.tasks import background, first_done, to_the_end
from tandem.protos.types import ModelDescription

JOIN_SECONDS = 30.0  # Ray itself goes on for minutes
START_SECONDS = 300.0  # of a private Ray, on cores that streams take
LOST_SECONDS = (55.0, 600.0)  # without an answer for round workers; more after each new start
PAUSES = (1.0, 60.0)  # until another start, the longer the more starts were of no use
KILL_SECONDS = 1.0
LINE_BYTES = 1 << 20

log = structlog.get_logger()


class DriverProcess:
    """Starts it, places round workers through it, and knows what they still owe an answer."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self._config, self._joins = config, config.ray_address != cluster.LOCAL
        self._host: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._placement = b""
        self._input: asyncio.StreamWriter | None = None  # of the driver, once Ray has started
        self._started, self._placed, self._lost = (asyncio.Event() for _ in range(3))
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._missed: dict[int, float] = {}  # round workers without an answer, since when
        self._restarted: set[int] = set()  # those of them that Ray has been asked to restart
        self._problem = ""
        self._pause, self._lost_after = PAUSES[0], LOST_SECONDS[0]

    async def joined(self) -> None:
        """Wait for a cluster that is to be joined; raises Unusable. A private one may take its
        time.
        """
        if self._joins:
            try:
                await asyncio.shield(self._host)
            except Unavailable as error:
                problem = f"cannot join the Ray cluster at {self._config.ray_address}: {error}"
                raise Unusable(problem) from None

    @asynccontextmanager
    async def supervising(
        self, config: OrchestratorConfig, target: ModelDescription
    ) -> AsyncIterator[ReserveSupervisor]:
        """Round workers on Ray as soon as it has started, and the one in reserve."""
        async with local.supervising(config, target) as reserve:
            self._placement = driver.packed((reserve.access, target))
            self._place()
            host = self._host.result() if self._joins else reserve.host
            yield ReserveSupervisor(self, config.workers, reserve, host)

    async def endpoint(self, index: int) -> str:
        """The address of worker `index`; raises Unavailable if Ray is lost meanwhile."""
        while not self._placed.is_set():
            await self._placed.wait()
        number = next(self._numbers)
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._missed.setdefault(index, monotonic())
        self._send(endpoint=index, number=number)
        try:
            address = await answer
        finally:
            del self._answers[number]
        self._missed.pop(index, None)
        self._restarted.discard(index)
        if not self._missed:
            self._pause, self._lost_after = PAUSES[0], LOST_SECONDS[0]
        return address

    def restart(self, index: int) -> None:
        """Have Ray restart a worker that does not answer, once; then start Ray again: a private one
        that lacks a worker for long, a cluster that has none.
        """
        now = monotonic()
        late = now - self._missed.get(index, inf) > self._lost_after / 2
        if late and index not in self._restarted:
            self._restarted.add(index)
            self._send(restart=index)
        lost = [index for index, since in self._missed.items() if now - since > self._lost_after]
        if len(lost) >= (self._config.workers if self._joins else 1):
            self._problem = "round workers do not answer"
            self._lost_after = min(2 * self._lost_after, LOST_SECONDS[1])
            self._lost.set()

    async def live(self) -> None:
        """Start the driver, and again after each of its ends."""
        while True:
            self._problem = "its driver has ended"
            try:
                async with self._process() as process:
                    await first_done(self._read(process), self._useless())
            except (OSError, RuntimeError) as error:  # no process, or no thread, can be had
                self._problem = str(error)
            if is_cancelled():
                raise asyncio.CancelledError
            started = self._started.is_set()
            self._forget()
            self._refuse()
            if self._host.done() and self._host.exception():
                return
            more = {"problem": self._problem, "again_in_seconds": self._pause}
            if started:
                log.warning("Ray is lost", **more)
            else:
                log.warning("Ray did not start", **more)
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, PAUSES[1])

    async def _read(self, process: Process) -> None:
        """Take in what the driver announces, until it ends."""
        assert process.stdout
        with suppress(ValueError):  # a line that has no end is none of its own
            async for line in process.stdout:
                if fact := announcement(line):
                    self._receive(process, fact)

    async def _useless(self) -> None:
        """Wait until Ray takes too long to start, or has lost round workers."""
        limit = START_SECONDS if self._host.done() or not self._joins else JOIN_SECONDS
        try:
            async with asyncio.timeout(limit):
                await self._started.wait()
        except TimeoutError:
            self._problem = f"no answer in {limit:.0f} s"
            self._refuse()
        else:
            await self._lost.wait()

    def _refuse(self) -> None:
        """A cluster that cannot be joined at first is not tried again."""
        if self._joins and not self._host.done():
            self._host.set_exception(Unavailable(self._problem))

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Process]:
        """The driver while the scope lasts. It and Ray have a session of their own: Ctrl-C does not
        reach them, and where Linux shares cores between sessions, Ray's start takes none of the
        front end's part.
        """
        command = sys.executable, "-P", "-m", driver.__name__
        with TemporaryDirectory(prefix="tandem-", ignore_cleanup_errors=True) as folder:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, start_new_session=True
            )
            assert process.stdin
            try:
                process.stdin.write(driver.packed((self._config, folder, os.getpid())))
                yield process
            finally:
                await to_the_end(self._end(process))

    async def _end(self, process: Process) -> None:
        """End the driver, in order if that takes no longer than it may."""
        assert process.stdin and process.stdout
        process.stdin.close()
        if not self._started.is_set() and not process.stdout.at_eof():
            with suppress(ProcessLookupError):
                process.terminate()  # it does not read commands yet
        try:
            async with asyncio.timeout(driver.STOP_SECONDS):
                await process.communicate()
        except TimeoutError:
            log.warning("Ray's driver is killed, as it does not end")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it has started of Ray
                with suppress(TimeoutError):
                    await asyncio.wait_for(process.communicate(), KILL_SECONDS)

    def _receive(self, process: Process, fact: Mapping[str, Any]) -> None:
        """One announcement."""
        if fact["event"] == driver.STARTED:
            self._input = process.stdin
            self._started.set()
            if not self._host.done():
                self._host.set_result(fact["host"])
            self._place()
        elif fact["event"] == driver.FAILED:
            self._problem = fact["problem"]
        elif (answer := self._answers.get(fact.get("number", -1))) and not answer.done():
            if fact["event"] == driver.LOST:
                answer.set_exception(Unavailable(f"a round worker is lost: {fact['problem']}"))
            else:
                answer.set_result(fact["address"])

    def _place(self) -> None:
        """Have round workers placed, once Ray has started and the target is known."""
        if self._input and self._placement and not self._placed.is_set():
            self._input.write(self._placement)
            self._placed.set()

    def _send(self, **command: int) -> None:
        if self._input:
            self._input.write(json.dumps(command).encode() + b"\n")

    def _forget(self) -> None:
        """There is no driver, and nobody who answers."""
        self._input = None
        for event in (self._started, self._placed, self._lost):
            event.clear()
        self._missed.clear()
        self._restarted.clear()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable("Ray is lost"))


@asynccontextmanager
async def driving(config: OrchestratorConfig) -> AsyncIterator[Supervising]:
    """Ray's driver while the scope lasts; raises Unusable if it cannot join a cluster."""
    process = DriverProcess(config)
    async with background(process.live()):
        await process.joined()
        yield process.supervising
