"""Capture passes as CUDA graphs. Replaying a graph takes a single launch and runs no Python code.

All passes of the same form must launch the same kernels. This module does not depend on what the
passes compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock

import torch

from tandem.engine.forward.cuda.rows import PassShape, RowPlan

WARM_UPS = 2  # passes to run before a capture: libraries then choose kernels and allocate memory
CAPTURING = Lock()  # a process can run only one capture at a time

Run = Callable[[RowPlan], torch.Tensor]  # runs a pass and returns logits [outputs, vocab]
Replay = Callable[[], object]  # replays a captured pass on the current contents of its arrays
Capture = Callable[[Callable[[], torch.Tensor]], tuple[Replay, torch.Tensor]]
"""A function that captures a pass as a graph. It returns a function that replays the graph, and the
tensor to which each replay writes the logits.
"""


@dataclass(frozen=True, slots=True)
class CapturedPass:
    """A captured pass, with the arrays that it reads and the logits that it writes."""

    replay: Replay
    logits: torch.Tensor
    rows: RowPlan

    def run(self, rows: RowPlan) -> torch.Tensor:
        """Replay the graph for another pass of the same form, and return the logits of that pass.
        The logits are valid until the next pass.
        """
        self.rows.copy_from(rows)
        self.replay()
        return self.logits


class CudaGraphs:
    """Runs passes as CUDA graphs. The first pass of each form is captured, and all passes of that
    form are replays of its graph. If a capture fails, `problem` says why, and passes of that form
    are launched kernel by kernel.
    """

    def __init__(self, run: Run, device: torch.device, capture: Capture | None = None) -> None:
        self.problem: str | None = None
        self._run = run
        self._device = device
        self._capture = capture or cuda_capture(device)
        self._captured: dict[PassShape, CapturedPass | None] = {}

    def __call__(self, rows: RowPlan) -> torch.Tensor:
        """Run a pass and return its logits, [outputs, vocab], valid until the next pass."""
        if rows.shape not in self._captured:
            self._captured[rows.shape] = self._capture_pass(rows)
        captured = self._captured[rows.shape]
        return captured.run(rows) if captured else self._run(rows.to(self._device))

    def capture_all(self, passes: Iterable[RowPlan]) -> int:
        """Capture a graph for each form among the given passes that has no graph yet, and drop the
        graphs of all other forms. Return how many forms can be replayed. Raises OutOfMemoryError.
        """
        chosen = {rows.shape: rows for rows in passes}
        known = self._captured
        self._captured = {shape: known[shape] for shape in chosen if shape in known}
        for shape, rows in chosen.items():
            if shape not in known:
                self._captured[shape] = self._capture_pass(rows)
        return sum(captured is not None for captured in self._captured.values())

    def _capture_pass(self, rows: RowPlan) -> CapturedPass | None:
        """Return a pass captured after some warm-up runs, or None if the capture fails. Raises
        OutOfMemoryError.
        """
        on_device = rows.to(self._device)
        try:
            return CapturedPass(*self._capture(lambda: self._run(on_device)), on_device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.problem = f"{rows.shape} cannot be captured: {str(error).splitlines()[0]}"
            return None


def cuda_capture(device: torch.device) -> Capture:
    """Return the function that captures passes on a CUDA device."""
    # all graphs can share this memory pool, because only one pass runs at a time
    memory = torch.cuda.graph_pool_handle()
    # captures run on a stream of their own, so that the memory that libraries allocate for the
    # stream is freed together with the graphs
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
