"""Measure the seconds of a pass over a single token before the first request: a replica is compared
with others even before it has run a pass (`orchestrator.links.policy`).
"""

from __future__ import annotations

import time
from statistics import median

import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.model_runner import ModelRunner
from tandem.protos import tree

PASSES = 5


@torch.inference_mode()
def light_seconds(runner: ModelRunner) -> float:
    """Return the seconds of a pass over one token, the median of PASSES passes."""
    table = runner.pool.allocate(1)
    assert table, "there is no session yet"
    seconds = []
    try:
        for _ in range(PASSES):
            began = time.perf_counter()
            runner([Segment(table, 0, (0,), tree.chain(1), 1)])[0].cpu()  # waits for a GPU
            seconds.append(time.perf_counter() - began)
    finally:
        runner.pool.release(table)
    return median(seconds)
