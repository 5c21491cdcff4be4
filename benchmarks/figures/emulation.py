"""Passes by rows on a CPU, as a CUDA device runs them: the operator that attends spelled out, and
passes that are replayed on the memory that they were captured on.

For checks where there is no device: what it shows is right there, but for the device's own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tandem.engine.forward.cuda import flash
from tandem.engine.forward.cuda.graphs import CudaGraphs, Replay
from tandem.engine.forward.cuda.rows import KeyRuns
from tandem.engine.runner import AttentionBackend, HFRunner


@contextmanager
def emulated() -> Iterator[None]:
    """Within the scope CPUs have the operator that attends, too."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", attend, "CPU")
    try:
        yield
    finally:
        library._destroy()


def attend(
    query: torch.Tensor,  # [rows, heads, size]
    keys: torch.Tensor,  # [positions, heads, size]
    values: torch.Tensor,
    bounds: torch.Tensor,
    starts: torch.Tensor,
    widest: int,
    longest: int,
    dropout: float,
    causal: bool,
    debug: bool,
    *,
    scale: float,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """`aten::_flash_attention_forward` as far as we call it, and no further."""
    if dropout or causal or debug or options != flash.NO_SPLIT:
        raise NotImplementedError(f"attention with {dropout}, {causal}, {debug}, {options}")
    if {each.dtype for each in (bounds, starts, seqused_k)} != {torch.int32}:
        raise TypeError("the bounds of runs are int32")
    if int(seqused_k.max()) > longest or int(bounds.diff().max()) > widest:
        raise ValueError(f"runs are longer than {longest} keys or {widest} rows")
    output, sums = flash.reference_kernel(
        query, keys, values, KeyRuns(bounds, starts, seqused_k, widest, block_table), scale
    )
    nothing = torch.empty(0)
    return output, sums.t().contiguous(), nothing, nothing, nothing


def capture(run: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    """`engine.forward.cuda.graphs.Capture`: the pass runs again, and writes the same logits."""
    logits = run().clone()
    return lambda: logits.copy_(run()), logits


def replaying(forward: HFRunner) -> HFRunner:
    """One by rows that replays its passes from now on."""
    forward._runner = CudaGraphs(forward._run, forward.model.device, capture)
    forward.backend = AttentionBackend.GRAPHS
    return forward
