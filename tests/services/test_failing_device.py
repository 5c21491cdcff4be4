"""If every pass of a device fails, the service stops serving, and its process ends so that a
supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from asyncio.subprocess import PIPE, create_subprocess_exec
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Never

import pytest
from prometheus_client import CollectorRegistry

from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.segment import Segment
from tandem.engine.runner import HFRunner
from tandem.engine.schedule.progress import FAILED_STEPS
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.errors import TandemError, Unusable
from tandem.protos.service.process import announcement
from tandem.protos.transport import rpc
from tandem.protos.types import NO_DRAFT, Context, SamplingParams
from tandem.verifier_service import service as verifier_service
from tests.served import Pair
from tests.waiting import LIMIT

PROBLEM = f"{FAILED_STEPS} steps in a row have failed, the last with RuntimeError: CUDA error"
PROGRAM = """
import runpy

from tandem.engine import host

warm_up = host.warm_up

def failing(segments):
    raise RuntimeError("CUDA error")

async def then_fail(thread, *given):
    await warm_up(thread, *given)
    thread._forward = failing

host.warm_up = then_fail
runpy.run_module("tandem.verifier_service", run_name="__main__")
"""


def failing(runner: HFRunner, segments: Sequence[Segment]) -> Never:
    raise RuntimeError("CUDA error")


async def fail_often(address: str) -> list[TandemError]:
    """Send as many openings as the limit of failures, each for its own session."""
    failures: list[TandemError] = []
    async with rpc.connect(address) as channel:
        client = VerifierClient(channel)
        for _ in range(FAILED_STEPS):
            opening = Context(secrets.token_bytes(16), 1, 0, (5, 6))
            with pytest.raises(TandemError) as failed:
                await client.verify(opening, NO_DRAFT, SamplingParams())
            failures.append(failed.value)
    return failures


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # planted
async def test_a_verifier_whose_model_thread_dies_ends_and_says_so(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(runner: HFRunner, segments: Sequence[Segment]) -> Never:
        raise SystemExit

    config = ModelServiceConfig(model=embedded.target, threads=1)
    with pytest.raises(Unusable, match="no longer be served: the model thread ended"):
        async with verifier_service.serving(config, CollectorRegistry()) as address:
            monkeypatch.setattr(HFRunner, "__call__", dying)
            async with rpc.connect(address) as channel, asyncio.timeout(LIMIT):
                opening = Context(secrets.token_bytes(16), 1, 0, (5, 6))
                with suppress(TandemError):
                    await VerifierClient(channel).verify(opening, NO_DRAFT, SamplingParams())
                await asyncio.Event().wait()  # the scope ends by itself


async def test_a_verifier_whose_every_pass_fails_ends_and_says_why(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is a task of its own, because the service may end before it has read its last
    error.
    """
    config = ModelServiceConfig(model=embedded.target, threads=1)
    async with AsyncExitStack() as scope:
        scope.enter_context(pytest.raises(Unusable, match=PROBLEM))
        serving = verifier_service.serving(config, CollectorRegistry())
        address = await scope.enter_async_context(serving)
        monkeypatch.setattr(HFRunner, "__call__", failing)
        sending = asyncio.create_task(fail_often(address))
        async with asyncio.timeout(LIMIT):
            await asyncio.Event().wait()  # the scope ends by itself
    assert len(await sending) == FAILED_STEPS


@pytest.mark.long("starts a process")
async def test_its_process_ends_with_one_line(embedded: Pair) -> None:
    flags = (f"--model={embedded.target}", "--port=0", "--metrics-port=0", "--threads=1")
    process = await create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *flags, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        address = ""
        while not address:
            line = await process.stdout.readline()
            assert line, "it did not start"
            address = (announcement(line) or {}).get("address", "")
        await fail_often(address)
        async with asyncio.timeout(LIMIT):
            said = (await process.stderr.read()).decode().splitlines()
            assert await process.wait() == 1
    finally:
        if process.returncode is None:
            process.kill()
    assert said[-1] == f"error: the model can no longer be served: {PROBLEM}"
