"""The builds of the kernels that this processor runs, and drafters that are left alone often."""

from __future__ import annotations

import os

import pytest

from tandem.engine.forward.cpu.builds import runnable
from tandem.engine.forward.cpu.kernels import Kernels
from tandem.orchestrator.rounds import backoff


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An emulated processor, on which all would take a quarter of an hour, runs every so many."""
    items[:] = items[:: int(os.environ.get("EVERY", "1"))]


@pytest.fixture(params=runnable(), ids=lambda file: file.name.partition(".")[0])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """One of them, in use; without any, the test is skipped."""
    one = Kernels(request.param)
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.WORTH_SHARING", 1)
    for module in ("kernels", "panels"):
        monkeypatch.setattr(f"tandem.engine.forward.cpu.{module}.kernels", lambda: one)
    return one


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafters are left alone often, so that it happens in texts as short as these."""
    monkeypatch.setattr(backoff, "PATIENCE", 4)
    monkeypatch.setattr(backoff, "PAUSES", (0.4, 0.8))


@pytest.fixture
def drawn_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are on a processor here, but are drawn from as a device's are.

    Modules are named, not imported: an emulated processor lacks packages that sampling needs.
    """
    drawing = "tandem.engine.sampling.drawing"
    batched = "tandem.verifier_service.batched_sampling"
    for module in (drawing, batched):
        monkeypatch.setattr(f"{module}.has_kernel", lambda _: False)
    monkeypatch.setattr(f"{drawing}.has_device_kernel", lambda _: True)
    monkeypatch.setattr(f"{batched}.samples_before_walk", lambda _: True)
