"""Fixtures: the builds of the kernels that this processor can run, and settings that make short
tests reach rare events.
"""

from __future__ import annotations

import os

import pytest

from tandem.engine.forward.cpu.builds import runnable
from tandem.engine.forward.cpu.kernels import Kernels
from tandem.orchestrator.rounds import backoff


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On an emulated processor, running all tests would take a quarter of an hour, so only a fixed
    part of them runs there.
    """
    items[:] = items[:: int(os.environ.get("EVERY", "1"))]


@pytest.fixture(params=runnable(), ids=lambda file: file.name.partition(".")[0])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Use one of the kernel builds in the test; skip the test if the processor can run none."""
    one = Kernels(request.param)
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.WORTH_SHARING", 1)
    for module in ("kernels", "panels"):
        monkeypatch.setattr(f"tandem.engine.forward.cpu.{module}.kernels", lambda: one)
    return one


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses of drafters frequent, so that even a short text contains some."""
    monkeypatch.setattr(backoff, "PATIENCE", 4)
    monkeypatch.setattr(backoff, "PAUSES", (0.4, 0.8))


@pytest.fixture
def drawn_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample rows on the CPU in the way that rows on a GPU are sampled.

    The modules are named by strings, not imported, because an emulated processor lacks packages
    that sampling needs.
    """
    drawing = "tandem.engine.sampling.drawing"
    batched = "tandem.verifier_service.batched_sampling"
    for module in (drawing, batched):
        monkeypatch.setattr(f"{module}.has_kernel", lambda _: False)
    monkeypatch.setattr(f"{drawing}.has_device_kernel", lambda _: True)
    monkeypatch.setattr(f"{batched}.samples_before_walk", lambda _: True)
