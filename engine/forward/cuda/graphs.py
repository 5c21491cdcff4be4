"""Passes captured as CUDA graphs: replaying one takes a single launch, and no Python.

Knows that what runs depends on the form of a pass alone, not what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

import torch

from tandem.engine.forward.cuda.rows import PassShape, RowPlan

WARM_UPS = 2  # libraries choose kernels and take memory in the first passes
CAPTURING = Lock()  # a process can have one capture at a time

Run = Callable[[RowPlan], torch.Tensor]  # the logits of a pass, [outputs, vocab] on the device
Replay = Callable[[], object]  # does on the device what was captured, with what its arrays hold now
Capture = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""From a pass to its replay, and to the logits that this writes."""


@dataclass(frozen=True, slots=True)
class CapturedPass:
    """A captured pass, the arrays that it reads and the logits that it writes."""

    replay: Replay
    logits: torch.Tensor
    rows: RowPlan

    def run(self, rows: RowPlan) -> torch.Tensor:
        """The logits of another pass of the same form; they last until the next one."""
        self.rows.copy_from(rows)
        self.replay()
        return self.logits


class CudaGraphs:
    """Runs passes; the first of a form is captured and then replayed. `problem`: why one was
    not: passes of its form go on to be launched kernel by kernel.
    """

    def __init__(self, run: Run, device: torch.device, capture: Capture | None = None) -> None:
        self.problem: str | None = None
        self._run, self._device = run, device
        self._capture = capture or cuda_capture(device)
        self._captured: dict[PassShape, CapturedPass | None] = {}

    def __call__(self, rows: RowPlan) -> torch.Tensor:
        """The logits of a pass, [outputs, vocab]; they last until the next one."""
        if rows.shape not in self._captured:
            self._captured[rows.shape] = self._capture_pass(rows)
        captured = self._captured[rows.shape]
        return captured.run(rows) if captured else self._run(rows.to(self._device))

    def capture_all(self, passes: Iterable[RowPlan]) -> int:
        """Capture passes of these forms, as far as they were not yet, and forget all others; how
        many can be replayed. Raises OutOfMemoryError.
        """
        wanted = {rows.shape: rows for rows in passes}
        known = self._captured
        self._captured = {shape: known[shape] for shape in wanted if shape in known}
        for shape, rows in wanted.items():
            if shape not in known:
                self._captured[shape] = self._capture_pass(rows)
        return sum(captured is not None for captured in self._captured.values())

    def _capture_pass(self, rows: RowPlan) -> CapturedPass | None:
        """Capture a pass, after some that run; None if that fails. Raises OutOfMemoryError."""
        on_device = rows.to(self._device)
        try:
            return CapturedPass(*self._capture(lambda: self._run(on_device)), on_device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.problem = f"{rows.shape} cannot be captured: {str(error).splitlines()[0]}"
            return None


def cuda_capture(device: torch.device) -> Capture:
    """How passes are captured on a CUDA device."""
    memory = torch.cuda.graph_pool_handle()  # shared: one pass at a time
    # of their own: what libraries keep for a stream that is captured goes with the graphs
    stream = torch.cuda.Stream(device)

    def capture(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        with CAPTURING, torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_stream(current)
            for _ in range(WARM_UPS):
                run()
            with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
                logits = run()
        current.wait_stream(stream)
        return graph.replay, logits

    return capture
