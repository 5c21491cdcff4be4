"""Measure the device time of captured forward passes, without the time that the host needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.benchmarks.figures.steptimes import Figures
from tandem.engine.forward.cuda.graphs import CudaGraphs, Replay
from tandem.engine.runner import HFRunner

REPLAYS = 10  # number of consecutive replays of each captured pass


def replayed(forward: HFRunner) -> dict[int, float]:
    """Return the device time of each captured pass in seconds, by the number of rows. Passes that
    have rows without logits are left out. On a CPU the mapping is empty.
    """
    graphs = forward._runner
    if forward.model.device.type == "cpu" or not isinstance(graphs, CudaGraphs):
        return {}
    captured = (each for each in graphs._captured.values() if each)
    whole = [each for each in captured if each.rows.shape.outputs == each.rows.count]
    return {each.rows.count: device_seconds(each.replay) for each in whole}


def device_seconds(replay: Replay) -> float:
    """Return the mean device time of a replay in seconds. Several replays follow each other, so
    that the device does not have to wait for the host.
    """
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
    """Return a table of the device time of captured passes by number of rows, or "" if no pass was
    timed.
    """
    if not (passes := figures.captured()):
        return ""
    lines = [
        ["rows", *(str(each["rows"]) for each in passes)],
        ["ms", *(f"{each['milliseconds']:.2f}" for each in passes)],
        ["floors", *(f"{each['floors']:.2f}" for each in passes)],
    ]
    return f"\n\ndevice time of a captured pass in ms, by number of rows\n{aligned(lines)}"


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Format a table as text. Each column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
