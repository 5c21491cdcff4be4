"""Ray places round workers, and none of its processes can break a stream."""

from __future__ import annotations

import asyncio
import os
import signal

from tandem import AsyncClient
from tandem.benchmarks.chaos.ray_processes import CONTROL_PLANE, NODE, WORKER, ray_processes
from tandem.benchmarks.peers.checkout import HERE, address, child
from tests.conftest import Pair

REQUEST = {"temperature": 0.7, "seed": 3, "max_new_tokens": 60, "ignore_eos": True}


async def test_streams_go_on_when_one_process_of_ray_after_the_other_is_killed(
    embedded: Pair,
) -> None:
    target = str(embedded.target)
    quiet = "--threads", "1", "--log-level", "error"
    async with child(HERE, "verifier_service", "--model", target, *quiet) as verifier:
        flags = "--verifier", await address(verifier), "--tokenizer", target, "--port", "0"
        async with child(HERE, "orchestrator", *flags, "--workers", "2") as orchestrator:
            async with AsyncClient(await address(orchestrator), retry_seconds=1.0) as client:
                right = (await client.generate("Once", **REQUEST)).text
                killed = asyncio.Event()

                async def stream() -> None:
                    while not killed.is_set():
                        assert (await client.generate("Once", **REQUEST)).text == right

                async with asyncio.TaskGroup() as streams:
                    for _ in range(3):
                        streams.create_task(stream())
                    await asyncio.sleep(4)
                    for name in (WORKER, CONTROL_PLANE, WORKER, NODE):
                        victims = ray_processes(orchestrator.pid, name)
                        assert victims, name
                        for victim in victims:
                            os.kill(victim, signal.SIGKILL)
                        await asyncio.sleep(4)
                    killed.set()
                assert (await client.generate("Once", **REQUEST)).text == right
            assert orchestrator.returncode is None
            orchestrator.terminate()
            assert await asyncio.wait_for(orchestrator.wait(), 60) == 0
