"""The builds of the kernels that this processor runs."""

from __future__ import annotations

import pytest

from tandem.engine.forward.cpu.kernels import Kernels, runnable


@pytest.fixture(params=runnable(), ids=lambda file: file.name.partition(".")[0])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """One of them, in use; without any, the test is skipped."""
    one = Kernels(request.param)
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.WORTH_SHARING", 1)
    for module in ("kernels", "panels"):
        monkeypatch.setattr(f"tandem.engine.forward.cpu.{module}.kernels", lambda: one)
    return one
