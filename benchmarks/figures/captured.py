"""What captured passes take of the device alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.benchmarks.figures.steptimes import Figures
from tandem.engine.forward.cuda.graphs import CudaGraphs, Replay
from tandem.engine.runner import HFRunner

REPLAYS = 10  # of each captured pass, in a row


def replayed(forward: HFRunner) -> dict[int, float]:
    """Seconds that the device alone takes for a captured pass whose rows all give logits, by its
    rows; on a CPU, nothing.
    """
    graphs = forward._runner
    if forward.model.device.type == "cpu" or not isinstance(graphs, CudaGraphs):
        return {}
    captured = (each for each in graphs._captured.values() if each)
    whole = [each for each in captured if each.rows.shape.outputs == each.rows.count]
    return {each.rows.count: device_seconds(each.replay) for each in whole}


def device_seconds(replay: Replay) -> float:
    """What one of several replays in a row takes, while the device never waits for the host."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    began.record()
    for _ in range(REPLAYS):
        replay()
    ended.record()
    ended.synchronize()
    seconds: float = began.elapsed_time(ended) / 1e3 / REPLAYS
    return seconds


def pass_table(figures: Figures) -> str:
    """Milliseconds of a captured pass by rows; nothing where none was timed."""
    if not (passes := figures.captured()):
        return ""
    lines = [
        ["rows", *(str(each["rows"]) for each in passes)],
        ["ms", *(f"{each['milliseconds']:.2f}" for each in passes)],
        ["floors", *(f"{each['floors']:.2f}" for each in passes)],
    ]
    return f"\n\nmilliseconds of a captured pass by rows, on the device alone\n{aligned(lines)}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table whose columns are as wide as what is in them."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
