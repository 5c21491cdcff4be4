"""What passes cost, measured before the first request: how many tokens of a prompt fit beside the
work of others, and whether a replica is slower than another, is known from the start.
"""

from __future__ import annotations

import time

import torch

from tandem.engine.forward.segment import Segment
from tandem.engine.model_runner import ModelRunner
from tandem.engine.schedule.batch import load_of
from tandem.engine.schedule.cost import CostModel
from tandem.protos import tree

SIZES = (1, 8, 1, 8, 1, 8)  # tokens of each pass


@torch.inference_mode()
def profiled(runner: ModelRunner) -> CostModel:
    """The cost of passes over a single token and over a few, in the seconds that they take now."""
    cost = CostModel()
    longest = min(max(SIZES), runner.model.context_length)
    kv_range = runner.pool.allocate(longest)
    assert kv_range, "there is no session yet"
    try:
        for size in SIZES:
            count = min(size, longest)
            segment = Segment(kv_range, 0, tuple(range(count)), tree.chain(count), count)
            began = time.perf_counter()
            runner([segment])[0].cpu()  # waits until a GPU has computed it
            cost.learn(load_of(segment), time.perf_counter() - began)
    finally:
        runner.pool.release(kv_range)
    return cost
