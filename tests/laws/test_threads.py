"""The kernels' threads start once, whatever sizes of work follow each other."""

from __future__ import annotations

import os
import random
import sys

import pytest
import torch

from tandem.engine.forward.cpu.kernels import Activation, kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tests.laws.passes import logits, of_family, step

ROUNDS = 5

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason="the kernels were not built"),
    pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc"),
]


def test_work_of_any_size_starts_no_thread_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenMP ends threads for a smaller team and starts them again for a larger one, which takes
    longer than most layers.
    """
    build = kernels()
    assert build
    monkeypatch.setattr(build, "threads", 4)
    rows, wide = torch.randn(300, 1024), torch.randn(300, 2048)
    layers = [PanelLinear(torch.randn(outputs, 1024), None) for outputs in (16, 256, 384, 1024)]
    seen, started = set[str](), list[int]()
    for _ in range(ROUNDS):
        for count in (1, 150, 300):
            for layer in layers:
                layer(rows[:count])
            build.norm(rows[:count], torch.ones(1024), 1e-6)
            build.gate(wide[:count], Activation.SILU)
        now = set(os.listdir("/proc/self/task"))
        started.append(len(now - seen))
        seen |= now
    assert started[1:] == [0] * (ROUNDS - 1)


def test_a_step_of_a_program_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    build = kernels()
    assert build
    monkeypatch.setattr(build, "threads", 4)
    scene = of_family("llama_wide")
    program, tables = scene.program(), scene.tables(3)
    seen, started, rng = set[str](), list[int](), random.Random(0)
    for _ in range(6):
        logits(program, [segment for _, segment in step(tables, [0] * 3, rng, 40)])
        now = set(os.listdir("/proc/self/task"))
        started.append(len(now - seen))
        seen |= now
    assert started[1:] == [0] * 5
