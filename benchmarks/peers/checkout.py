"""Run the services of a checkout of the project. Each service is a process that runs the checkout's
code. A proxy of `benchmarks.peers.delay` simulates the network link between orchestrator and
drafter.

This module starts the services with their command lines, and stops them. The module sends no
requests.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tandem.benchmarks.peers.delay import State
from tandem.orchestrator.cli import certificates
from tandem.protos.errors import Unusable
from tandem.protos.service.process import CHILD, announcement
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2_grpc

HERE = Path(__file__).resolve().parents[2]
# benchmarks repeat requests, so the verifier must not draft from earlier answers
NO_RECENT_ANSWERS = ("--recent-tokens", "0")
GRACE_SECONDS = 20.0
QUIET = ("--log-level", "error")


Threads: TypeAlias = Mapping[str, float]
"""The processor seconds of each thread of a process."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The bytes that a link has carried, and the processor seconds of each thread, listed
    separately for processes with a model and for other processes.
    """

    carried: Mapping[str, int]
    models: Sequence[Threads]
    others: Sequence[Threads]

    def since(self, before: Spent) -> dict[str, float]:
        """Return the bytes sent to the drafter (`up`) and received from it (`down`) since `before`.
        `processor` has the CPU seconds of all threads except those that run models. In a process
        with a model, the busiest thread counts as the one that runs the model.
        """
        models = map(increases, self.models, before.models)
        beside = [*map(sum, map(increases, self.others, before.others))]
        beside += [sum(threads) - max(threads, default=0.0) for threads in models]
        carried = {way: self.carried[way] - before.carried[way] for way in self.carried}
        return {**carried, "processor": sum(beside)}


def increases(now: Threads, before: Threads) -> list[float]:
    """Return the processor seconds that each thread has used since `before`."""
    return [seconds - before.get(thread, 0.0) for thread, seconds in now.items()]


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout whose services are running: its folder, the addresses of its verifier and of the
    link to its drafter, and its processes.
    """

    folder: Path
    target: Path
    verifier: str
    drafter: str
    delay: Process
    models: Sequence[Process]  # the services that run a model
    tls: Path | None = None  # folder of certificates; if given, every hop uses TLS
    others: list[Process] = field(default_factory=list)

    async def link(self, state: State | None = None) -> Mapping[str, int]:
        """Set the state of the link, if given. Returns the bytes that the link has carried."""
        assert self.delay.stdin and self.delay.stdout
        changes = asdict(state) if state else {}
        self.delay.stdin.write(json.dumps(changes).encode() + b"\n")
        carried: Mapping[str, int] = json.loads(await self.delay.stdout.readline())
        return carried

    async def spent(self) -> Spent:
        """Return the bytes that the link has carried so far, and the processor seconds of all
        processes.
        """
        models, others = map(processor_seconds, self.models), map(processor_seconds, self.others)
        return Spent(await self.link(), tuple(models), tuple(others))

    @asynccontextmanager
    async def orchestrated(self) -> AsyncIterator[Any]:
        """Run a new orchestrator for the duration of the context, which yields a stub of its client
        API.
        """
        flags = f"--verifier {self.verifier} --drafter {self.drafter} --port 0 --no-ray".split()
        flags += ["--tokenizer", str(self.target), *credentials(self.tls, "orchestrator")]
        own = certificates.tls_of(self.tls, certificates.CLIENT) if self.tls else None
        async with (
            child(self.folder, "orchestrator", *flags, *QUIET) as process,
            rpc.connect(await address(process), own) as channel,
        ):
            self.others.append(process)
            try:
                yield orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            finally:
                self.others.remove(process)


def credentials(folder: Path | None, role: str) -> list[str]:
    """Return the flags that make a service use its certificate. Returns no flags if no folder of
    certificates is given.
    """
    return certificates.flags(folder, role) if folder else []


@asynccontextmanager
async def serving(
    folder: Path, target: Path, draft: Path, tls: Path | None = None
) -> AsyncIterator[Checkout]:
    """Run a checkout's verifier and drafter for the duration of the context. Raises Unusable."""
    async with AsyncExitStack() as stack:
        verifier, drafter = [
            await stack.enter_async_context(
                child(
                    folder,
                    f"{role}_service",
                    *("--model", str(model), "--threads", "1"),
                    *(NO_RECENT_ANSWERS if folder == HERE and role == "verifier" else ()),
                    *credentials(tls, role),
                    *QUIET,
                )
            )
            for role, model in (("verifier", target), ("drafter", draft))
        ]
        to_drafter = await address(drafter)
        delay = await stack.enter_async_context(child(HERE, "benchmarks.peers.delay", to_drafter))
        addresses = await address(verifier), await address(delay)
        yield Checkout(folder, target, *addresses, delay, (verifier, drafter), tls)


def processor_seconds(process: Process) -> Threads:
    """Return the processor seconds of each thread of a process. The mapping is empty where the
    operating system does not report them.
    """
    seconds = {}
    for thread in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            words = thread.read_text().rpartition(")")[2].split()
            seconds[str(thread)] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


@asynccontextmanager
async def child(folder: Path, module: str, *flags: str) -> AsyncIterator[Process]:
    """Run a checkout's module in a process for the duration of the context."""
    source = str(folder / "src")
    async with python("-m", f"tandem.{module}", *flags, folder=folder, PYTHONPATH=source) as it:
        yield it


@asynccontextmanager
async def python(
    *arguments: str, folder: Path | None = None, enter: Sequence[str] = (), **variables: str
) -> AsyncIterator[Process]:
    """Run a Python process for the duration of the context. When the context ends, its standard
    input is closed, and the process is killed if it does not stop. `enter` is a command that runs
    the process elsewhere, such as in a network namespace.
    """
    process = await asyncio.create_subprocess_exec(
        *enter,
        sys.executable,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        cwd=folder,
        env=os.environ | {CHILD: "1"} | variables,
        start_new_session=True,  # Ctrl-C interrupts only the benchmark
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()


async def address(process: Process) -> str:
    """Wait until the service in a process is ready, and return its address. Raises Unusable."""
    assert process.stdout
    async for line in process.stdout:
        message = announcement(line)
        if message and message["event"] == "failed":
            raise Unusable(message["problem"])
        if message and message["event"] == "serving":
            return message["address"]
    raise Unusable("a service did not start; its output above says why")


def save_untrained(draft: Path, folder: Path) -> Path:
    """Save a copy of a draft model with random weights, as if the model had never been trained."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(draft)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(draft / name, folder)
    return folder
