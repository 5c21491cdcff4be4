"""Passes captured as CUDA graphs: replaying one takes a single launch, and no Python.

Knows that what runs depends on the form of a pass alone, not what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.rows import Form, Rows

WARM_UPS = 2  # libraries choose kernels and take memory in the first passes

Run = Callable[[Rows], torch.Tensor]  # the logits of a pass, [kept, vocab] on the device


@dataclass(frozen=True, slots=True)
class Recording:
    """A captured pass, the arrays that it reads and the logits that it writes."""

    graph: torch.cuda.CUDAGraph
    rows: Rows
    logits: torch.Tensor

    def play(self, rows: Rows) -> torch.Tensor:
        """The logits of another pass of the same form; they last until the next one."""
        for own, given in zip((self.rows.longs, self.rows.spans), rows.pinned(), strict=True):
            own.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.logits


class Graphs:
    """Runs passes; the first of a form is captured and then replayed. `problem` says why one was
    not: passes of its form go on to be launched kernel by kernel.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self.problem: str | None = None
        self._run, self._device = run, device
        self._memory = torch.cuda.graph_pool_handle()  # shared: one pass at a time
        self._recordings: dict[Form, Recording | None] = {}

    def __call__(self, rows: Rows) -> torch.Tensor:
        """The logits of a pass, [kept, vocab]; they last until the next one."""
        if rows.form not in self._recordings:
            self._recordings[rows.form] = self._record(rows)
        recording = self._recordings[rows.form]
        return recording.play(rows) if recording else self._run(rows.on(self._device))

    def _record(self, rows: Rows) -> Recording | None:
        """Capture a pass without running it; None if that fails."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self._device):
                self._warm_up(rows)
                own = rows.on(self._device)
                with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                    logits = self._run(own)
        except RuntimeError as error:
            self.problem = f"{rows.form} cannot be captured: {str(error).splitlines()[0]}"
            return None
        return Recording(graph, own, logits)

    def _warm_up(self, rows: Rows) -> None:
        """Run the pass where a capture would: not on the default stream."""
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                self._run(rows.on(self._device))
        current.wait_stream(aside)
