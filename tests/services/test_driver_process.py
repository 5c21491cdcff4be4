"""When a Ray whose round workers do not answer is started again; an odd driver is in its place."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from tandem.models import TARGET
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.workers import driver, driver_process
from tandem.orchestrator.workers.driver_process import driving
from tandem.orchestrator.workers.supervisor import Supervisor
from tandem.protos.errors import Unavailable, Unusable
from tests.documents import ROOT
from tests.services.registering import MODEL
from tests.waiting import until

CLUSTER = "127.0.0.1:6379"


class Driver:
    """What was written down of it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def _received(self) -> Iterator[dict[str, Any]]:
        if self._file.exists():
            yield from map(json.loads, self._file.read_text(encoding="utf-8").splitlines())

    @property
    def lives(self) -> list[dict[str, Any]]:
        """Its processes."""
        return [each for each in self._received if "pid" in each]

    @property
    def restarts(self) -> list[int]:
        """Round workers whose restart was requested."""
        return [each["restart"] for each in self._received if "restart" in each]


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(driver, "__name__", "tests.services.odd_driver")
    monkeypatch.setattr(driver_process, "LOST_SECONDS", (0.4, 60.0))
    monkeypatch.setattr(driver_process, "PAUSES", (0.01, 0.1))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("RECEIVED", str(tmp_path / "received"))
    monkeypatch.setenv("ANSWERS", "")
    return Driver(tmp_path / "received")


def settings(address: str = "local") -> OrchestratorConfig:
    return OrchestratorConfig(
        verifier="v:1", tokenizer=TARGET, port=0, workers=2, ray_address=address
    )


@asynccontextmanager
async def supervised(address: str = "local") -> AsyncIterator[Supervisor]:
    config = settings(address)
    async with driving(config) as supervising, supervising(config, MODEL) as supervisor:
        yield supervisor


async def ask(supervisor: Supervisor, index: int) -> None:
    """As the pool does: again and again, until there is an address."""
    while True:
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(0.1):
                await supervisor.endpoint(index)
                return
        supervisor.restart(index)


@asynccontextmanager
async def asking(supervisor: Supervisor) -> AsyncIterator[None]:
    """For both round workers, while the scope lasts."""
    tasks = [asyncio.create_task(ask(supervisor, index)) for index in range(2)]
    yield
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("answers", ["", "0"])
async def test_a_private_ray_that_lacks_a_worker_is_started_again_later_each_time(
    odd: Driver, answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANSWERS", answers)
    with capture_logs() as lines:
        async with supervised() as supervisor, asking(supervisor):
            await until(lambda: len(odd.lives) == 4)
    pauses = [line["again_in_seconds"] for line in lines if "again_in_seconds" in line]
    assert pauses[:3] == [0.01, 0.02, 0.04]
    for index in (0, 1):
        expected = 0 if str(index) in answers else 3
        assert odd.restarts.count(index) in (expected, expected + 1), "once in a life"
    assert not any(psutil.pid_exists(life["pid"]) for life in odd.lives)


async def test_a_cluster_that_has_a_worker_is_not_left(
    odd: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(driver_process, "monotonic", lambda: now)
    monkeypatch.setenv("ANSWERS", "0")
    async with supervised(CLUSTER) as supervisor:
        address = await supervisor.endpoint(0)
        missed = asyncio.create_task(supervisor.endpoint(1))
        await asyncio.sleep(0)  # it is asked for now
        now = 1e6
        for _ in range(3):
            supervisor.restart(1)
        assert await supervisor.endpoint(0) == address, "of the same process"
        assert len(odd.lives) == 1 and odd.restarts == [1]
        missed.cancel()


async def test_a_cluster_that_does_not_answer_is_refused_in_time(
    odd: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUTE", "1")
    monkeypatch.setattr(driver_process, "JOIN_SECONDS", 1.0)
    with pytest.raises(Unusable, match=f"cannot join .* {CLUSTER}: no answer in 1 s"):
        async with supervised(CLUSTER):
            pass
    assert not any(psutil.pid_exists(life["pid"]) for life in odd.lives)
