"""The builds of the kernels that this processor runs, and threads that may be set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.cpu.kernels import Kernels, runnable


@pytest.fixture(params=runnable(), ids=lambda file: file.name.partition(".")[0])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """One of them, in use; without any, the test is skipped."""
    one = Kernels(request.param)
    monkeypatch.setattr("engine.cpu.panels.kernels", lambda: one)
    return one


@pytest.fixture
def threads() -> Iterator[None]:
    """The number of threads may change."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
