"""`tandem up`: all three services on this machine, each a process of its own, watched and
restarted.

A service that dies before it ever served ends the whole with its one-line error; one that dies
later is started again on its old port. Children hold a leash: whatever ends this process ends them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protos.errors import Unusable
from protos.fingerprint import fingerprint
from protos.gguf import is_gguf
from protos.service.process import LEASH, announcement
from protos.transport import rpc

HOST = "127.0.0.1"
GRACE_SECONDS = 20.0
RESTART_SECONDS = 1.0

Report = Callable[[str, dict[str, str]], None]


@dataclass(slots=True)
class Service:
    """One child process and the flags it is (re)started with."""

    role: str
    module: str
    flags: list[str]
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    serving: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self, report: Report) -> None:
        """Run the child, again and again; returns if it dies before it ever served."""
        while True:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                *self.flags,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 20,
                env=os.environ | {LEASH: "1"},
                # Ctrl-C reaches this process alone, which stops the rest in order
                start_new_session=True,
            )
            await self._listen(report)
            await self.process.wait()
            if not self.serving.is_set():
                return
            report("restarting", {"role": self.role})
            await asyncio.sleep(RESTART_SECONDS)

    async def stop(self) -> None:
        """Drop the leash and wait; kill what does not go."""
        if self.process is None or self.process.returncode is not None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), GRACE_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _listen(self, report: Report) -> None:
        assert self.process is not None and self.process.stdout is not None
        async for line in self.process.stdout:
            fact = announcement(line)
            if fact is None:  # a library's own words
                sys.stderr.write(line.decode(errors="replace"))
                continue
            event = fact.pop("event")
            report(event, fact)
            if event == "serving":
                self.address = fact["address"]
                self.serving.set()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start: two models and the port of the client API, 0 for a free one. `threads` are the
    verifier's.
    """

    target: Path
    draft: Path
    port: int
    workers: int = 1
    ray: bool = True
    threads: int = 1
    drafter: tuple[str, ...] = ()  # more of its flags

    @property
    def translates(self) -> bool:
        """Whether the drafter has another tokenizer than the target; raises Unusable."""
        return fingerprint(self.target) != fingerprint(self.draft)

    def services(self) -> list[Service]:
        """The three services on ports that are free now; raises Unusable."""
        for model in (self.target, self.draft):
            if not is_gguf(model) and not (model / "config.json").is_file():
                raise Unusable(f"{model} is not a model directory: it has no config.json")
        speaks = ["--speaks", str(self.target)] if self.translates else []
        more = (*speaks, *self.drafter)
        port = rpc.free_port(HOST, self.port)
        verifier, drafter = rpc.free_port(HOST), rpc.free_port(HOST)
        return [
            Service(
                "verifier",
                "verifier_service",
                [
                    *("--model", str(self.target), "--port", str(verifier)),
                    *("--threads", str(self.threads)),
                ],
            ),
            Service(
                "drafter",
                "drafter_service",
                ["--model", str(self.draft), "--port", str(drafter), "--threads", "1", *more],
            ),
            Service(
                "orchestrator",
                "orchestrator",
                [
                    *("--verifier", f"{HOST}:{verifier}", "--drafter", f"{HOST}:{drafter}"),
                    *(
                        "--tokenizer",
                        str(self.target),
                        "--port",
                        str(port),
                        "--workers",
                        str(self.workers),
                    ),
                    "--ray" if self.ray else "--no-ray",
                ],
            ),
        ]


@dataclass(frozen=True, slots=True)
class Tandem:
    """All services, up: where each role listens, and a future that ends when one cannot go on."""

    addresses: dict[str, str]
    death: asyncio.Future[None]


@asynccontextmanager
async def up(plan: Plan, report: Report = lambda event, fact: None) -> AsyncIterator[Tandem]:
    """All services while the scope lasts, once they serve; raises Unusable if one does not."""
    services = plan.services()
    if plan.translates:
        report("translating", {"role": "drafter"})
    lives = [asyncio.create_task(service.live(report)) for service in services]
    try:
        first_death = asyncio.ensure_future(_first(lives))
        all_serve = asyncio.gather(*(service.serving.wait() for service in services))
        await asyncio.wait((first_death, all_serve), return_when=asyncio.FIRST_COMPLETED)
        if not all_serve.done():
            all_serve.cancel()
            raise Unusable("a service did not start; its own line above says why")
        yield Tandem({service.role: service.address for service in services}, first_death)
    finally:
        for task in lives:
            task.cancel()
        await asyncio.gather(*lives, first_death, return_exceptions=True)
        await services[-1].stop()  # the orchestrator closes its sessions on the others first
        await asyncio.gather(*(service.stop() for service in services))


async def run(plan: Plan, report: Report, ready: Callable[[str], None]) -> None:
    """Serve until cancelled, and say where; raises Unusable when it cannot go on."""
    async with up(plan, report) as tandem:
        ready(tandem.addresses["orchestrator"])
        await tandem.death
        raise Unusable("a service cannot be kept alive")


async def _first(lives: list[asyncio.Task[None]]) -> None:
    """Wait for the first life to end; raises what ended it."""
    ended, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_COMPLETED)
    await ended.pop()
