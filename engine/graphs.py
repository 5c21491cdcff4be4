"""Passes captured as CUDA graphs: replaying one takes a single launch, and no Python.

Knows that what runs depends on the form of a pass alone, not what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import torch

from engine.rows import Form, Rows

WARM_UPS = 2  # libraries choose kernels and take memory in the first passes
CAPTURING = Lock()  # a process can have one capture at a time

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
        # of their own: what libraries keep for a stream that is captured goes with the graphs
        self._stream = torch.cuda.Stream(device)
        self._recordings: dict[Form, Recording | None] = {}

    def __call__(self, rows: Rows) -> torch.Tensor:
        """The logits of a pass, [kept, vocab]; they last until the next one."""
        if rows.form not in self._recordings:
            self._recordings[rows.form] = self._record(rows)
        recording = self._recordings[rows.form]
        return recording.play(rows) if recording else self._run(rows.on(self._device))

    def _record(self, rows: Rows) -> Recording | None:
        """Capture a pass, after some that run; None if that fails. Raises OutOfMemoryError."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        own = rows.on(self._device)
        try:
            with CAPTURING, torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_stream(current)
                for _ in range(WARM_UPS):
                    self._run(own)
                with torch.cuda.graph(
                    graph, self._memory, self._stream, capture_error_mode="thread_local"
                ):
                    logits = self._run(own)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.problem = f"{rows.form} cannot be captured: {str(error).splitlines()[0]}"
            return None
        current.wait_stream(self._stream)
        return Recording(graph, own, logits)
