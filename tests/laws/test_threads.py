"""The kernels' threads start once, whatever sizes of work follow each other."""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from tandem.engine.forward.cpu.kernels import Activation, kernels, required_kernels, use_threads
from tandem.engine.forward.cpu.panels import PanelLinear
from tests.laws.passes import logits, of_family, step

ROUNDS = 5

pytestmark = [
    pytest.mark.skipif(kernels() is None, reason="the kernels were not built"),
    pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc"),
]


def started(work: Callable[[], Iterator[None]]) -> list[int]:
    """Return how many threads each piece of some work starts. A process of its own does the work,
    with threads for the kernels alone as in a service: PyTorch's operations would end some of them.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_counted, work).result()


def _counted(work: Callable[[], Iterator[None]]) -> list[int]:
    use_threads(4)
    seen, counts = set[str](), list[int]()
    for _ in work():
        now = set(os.listdir("/proc/self/task"))
        counts.append(len(now - seen))
        seen |= now
    return counts


def all_sizes() -> Iterator[None]:
    """Run all kernels on few and on many rows, round by round."""
    build = required_kernels()
    rows, wide = torch.randn(300, 1024), torch.randn(300, 2048)
    layers = [PanelLinear(torch.randn(outputs, 1024), None) for outputs in (16, 256, 384, 1024)]
    for _ in range(ROUNDS):
        for count in (1, 150, 300):
            for layer in layers:
                layer(rows[:count])
            build.norm(rows[:count], torch.ones(1024), 1e-6)
            build.gate(wide[:count], Activation.SILU)
        yield


def steps() -> Iterator[None]:
    """Run steps of a program."""
    scene = of_family("llama_wide")
    program, tables, rng = scene.program(), scene.tables(3), random.Random(0)
    for _ in range(ROUNDS):
        logits(program, [segment for _, segment in step(tables, [0] * 3, rng, 40)])
        yield


def test_work_of_any_size_starts_no_thread_after_the_first() -> None:
    """OpenMP ends threads for a smaller team and starts them again for a larger one, which takes
    longer than most layers.
    """
    assert started(all_sizes)[1:] == [0] * (ROUNDS - 1)


def test_a_step_of_a_program_starts_no_thread() -> None:
    assert started(steps)[1:] == [0] * (ROUNDS - 1)
