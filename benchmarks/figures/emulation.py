"""Passes by rows on a CPU, as a CUDA device runs them: attention as one operation, and passes that
are replayed on the memory that they were captured on.

For checks where there is no device: what it shows is right there, but for the device's own kernels.
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
    """Within the scope attention by rows is one operation, so that a pass is made of operations."""
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
    """`attention.definition` as an operation."""
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
    """What the operation does."""
    plan = RowPlan(PassShape(query.shape[2], outputs), longs, ints, 0, len(ints))
    return spelled_out(plan, query, keys, values, AttentionOptions(*how))


def capture(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """`engine.forward.cuda.graphs.Capture`: the pass runs again, and writes the same logits."""
    logits = run().clone()
    return lambda: logits.copy_(run()), logits


def replaying(forward: HFRunner) -> HFRunner:
    """One by rows that replays its passes from now on."""
    forward._runner = CudaGraphs(forward._run, forward.model.device, capture)
    forward.backend = AttentionBackend.GRAPHS
    return forward
