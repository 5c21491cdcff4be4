"""The builds of the kernels that this processor runs."""

from __future__ import annotations

import pytest

from engine.forward.cpu.kernels import Kernels, runnable


@pytest.fixture(params=runnable(), ids=lambda file: file.name.partition(".")[0])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """One of them, in use; without any, the test is skipped."""
    one = Kernels(request.param)
    monkeypatch.setattr("engine.forward.cpu.kernels.WORTH_SHARING", 1)
    for module in ("panels", "norm", "gated"):
        monkeypatch.setattr(f"engine.forward.cpu.{module}.kernels", lambda: one)
    return one
