"""Figures say with which kernels they were measured: without, a CPU is several times as slow."""

from __future__ import annotations

import pytest
import torch

from tandem.benchmarks.figures import machine
from tandem.engine.forward.cpu.kernels import kernels


def test_figures_name_the_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if found := kernels():
        assert f", {found.name} kernels, " in machine.described("one thread")
    monkeypatch.setattr(machine, "kernels", lambda: None)
    assert ", no compiled kernels, " in machine.described("one thread")
    assert machine.facts(torch.device("cpu"))["kernels"] == "no compiled kernels"
