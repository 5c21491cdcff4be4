"""Ray's driver, a process that a front end starts: to start Ray takes seconds, on a busy machine
minutes, and when Ray ends it may end its driver too.

The first line of standard input has the settings, the second what round workers are given; then
each is a command. It answers with announcements on standard output, and ends when standard input
does.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
import threading
import time
from base64 import b64decode, b64encode
from typing import Any

from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.workers import cluster
from tandem.protos.service import process

STARTED, ENDPOINT, LOST, FAILED = "started", "endpoint", "lost", "failed"
STOP_SECONDS = 12.0  # for all that it does after its front end has ended
PROBLEM_LENGTH = 2000


def packed(thing: object) -> bytes:
    """A line that has it."""
    return b64encode(pickle.dumps(thing)) + b"\n"


def unpacked(line: bytes) -> Any:
    """What a line of the front end has."""
    return pickle.loads(b64decode(line))  # from the process that started this one


async def answer(workers: cluster.RayWorkers, number: int, index: int) -> None:
    """Announce the address of a worker when it runs."""
    try:
        address = await workers.endpoint(index)
    except Exception as error:  # whatever Ray raises
        process.announce(LOST, number=number, problem=type(error).__name__)
    else:
        process.announce(ENDPOINT, number=number, address=address)


async def drive(config: OrchestratorConfig) -> None:
    """Place round workers on the running Ray, and obey, until standard input ends."""
    process.announce(STARTED, host=cluster.node_host(config))
    async with process.standard_input() as lines:
        if not (given := await lines.readline()):
            return
        async with cluster.placed(config, *unpacked(given)) as workers:
            answers: dict[int, asyncio.Task[None]] = {}
            async for line in lines:
                command = json.loads(line)
                if (index := command.get("restart")) is not None:
                    workers.restart(index)
                    continue
                index, number = command["endpoint"], command["number"]
                if older := answers.pop(index, None):
                    older.cancel()
                answers[index] = asyncio.create_task(answer(workers, number, index))


def end_with(parent: int) -> None:
    """End when this parent does, in order if that takes no longer than it may; otherwise with every
    process of Ray that this one has started: they are in its process group.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        time.sleep(STOP_SECONDS)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Drive Ray until standard input ends."""
    process.raise_on_signals()
    config, folder, parent = unpacked(sys.stdin.buffer.readline())
    end_with(parent)
    process.configure_logging(config.log_level, config.log_format)
    try:
        with cluster.running(config.ray_address, config.workers, folder):
            for number in process.STOPPING:  # the front end ends it, in order
                signal.signal(number, signal.SIG_IGN)
            asyncio.run(drive(config))
    except Exception as error:
        process.announce(FAILED, problem=" ".join(str(error).split())[:PROBLEM_LENGTH])
        raise SystemExit(1) from None


if __name__ == "__main__":
    try:
        main()
    finally:  # an agent of Ray that had just started would try for minutes to reach its node
        os.killpg(os.getpgrp(), signal.SIGKILL)
