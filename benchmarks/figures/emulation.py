"""Emulate on a CPU how a CUDA device runs forward passes with the attention backend ROWS: attention
is one operation, and captured passes are replayed on the same memory.

With this emulation, checks of the engine run without a CUDA device. These checks cover everything
except the CUDA kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tandem.engine.forward.cuda import attention
from tandem.engine.forward.cuda.graphs import CudaGraphs, Replay
from tandem.engine.forward.cuda.rows import PassShape, RowPlan
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.runner import AttentionBackend, HFRunner


@contextmanager
def emulated() -> Iterator[None]:
    """Inside this context, run attention by rows as a single PyTorch operation, as a CUDA device
    does.
    """
    library = torch.library.Library("tandem_emulated", "DEF")
    library.define(
        "attend(Tensor longs, Tensor ints, Tensor query, Tensor keys, Tensor values, int outputs, "
        "float? scaling, int? window, float? softcap, Tensor? sinks) -> Tensor"
    )
    spelled_out, attention.definition = attention.definition, by_operation
    library.impl("attend", lambda *given: attend(spelled_out, *given), "CPU")
    try:
        yield
    finally:
        attention.definition = spelled_out
        library._destroy()


def by_operation(
    rows: RowPlan,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Run the reference implementation `attention.definition` as one operation of PyTorch."""
    how = options.scaling, options.window, options.softcap, options.sinks
    found: torch.Tensor = torch.ops.tandem_emulated.attend(
        rows.longs, rows.ints, query, keys, values, rows.shape.outputs, *how
    )
    return found


def attend(
    spelled_out: attention.Attend,
    longs: torch.Tensor,
    ints: torch.Tensor,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    outputs: int,
    *how: Any,
) -> torch.Tensor:
    """Rebuild the plan from the operation's arguments, and call the reference implementation with
    it.
    """
    plan = RowPlan(PassShape(query.shape[2], outputs), longs, ints, 0, len(ints))
    return spelled_out(plan, query, keys, values, AttentionOptions(*how))


def capture(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """Capture a pass as `engine.forward.cuda.graphs.Capture` does. A replay runs the pass again
    and writes its logits to the same memory.
    """
    logits = run().clone()
    return lambda: logits.copy_(run()), logits


def replaying(forward: HFRunner) -> HFRunner:
    """Modify a runner with the backend ROWS so that it replays its passes, and return it."""
    forward._runner = CudaGraphs(forward._run, forward.model.device, capture)
    forward.backend = AttentionBackend.GRAPHS
    return forward
