"""Batch invariance of cuBLAS: a row's result should not depend on the number of rows in its pass.
The settings of cuBLAS prevent most differences. A trial finds the pass sizes for which results are
bitwise equal.

If cuBLAS splits sums over thread blocks, the split depends on the number of rows. Without a
workspace, cuBLAS does not split sums. cuBLAS also chooses kernels by the number of rows, and some
kernels round differently, so only the trial shows whether the settings suffice.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence

import torch

from tandem.engine.cache.pool import KVPool
from tandem.engine.forward.cuda.graphs import Run
from tandem.engine.forward.cuda.rows import KVLayout
from tandem.engine.forward.cuda.table import SIZES, row_plans
from tandem.engine.forward.segment import Segment
from tandem.protos import tree

WORKSPACES = {
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "CUBLASLT_WORKSPACE_SIZE": "1",
}  # the smallest workspaces, in KiB
SPLIT_SETTING_SINCE = "2.10"  # the first version of torch that can disable split sums
BASE = 64  # a pass with up to this many rows takes hardly longer than a pass with one row


def disable_split_k() -> None:
    """Stop cuBLAS on all CUDA devices from splitting sums and from rounding partial sums. The
    process must not have run a matrix product on a CUDA device before, because cuBLAS reads the
    size of its workspace at the first product.
    """
    os.environ.update(WORKSPACES)
    product = torch.backends.cuda.matmul
    never = (False, False) if torch.__version__ >= SPLIT_SETTING_SINCE else False
    product.allow_fp16_reduced_precision_reduction = never
    product.allow_bf16_reduced_precision_reduction = never
    product.fp32_precision = "ieee"
    if torch.version.cuda:  # a build of torch without CUDA has no BLAS library to choose
        torch.backends.cuda.preferred_blas_library("cublaslt")


def invariant_sizes(
    run: Run,
    pool: KVPool,
    layout: KVLayout,
    longest: int,
    vocabulary: int,
    sizes: Sequence[int] = SIZES,
) -> tuple[int, ...]:
    """Return the pass sizes for which every row's logits have the same bits as in passes of `BASE`
    rows. The trial feeds one session of random tokens. The length of the session is the largest
    pass size that fits the model and the pool. Pass sizes that do not fit the model or the pool are
    left out, but `BASE` is always returned.
    """
    fitting = [size for size in sizes if size <= longest]
    table = None
    while fitting and not (table := pool.allocate(fitting[-1])):
        fitting.pop()
    if table is None:
        return (BASE,)
    rng = random.Random(0)
    tokens = tuple(rng.randrange(vocabulary) for _ in range(fitting[-1]))
    segment = Segment(table, 0, tokens, tree.chain(len(tokens)), len(tokens))

    def logits(size: int) -> torch.Tensor:
        passes = row_plans([segment], layout, exact=True, sizes=(size,))
        return torch.cat([run(rows)[: rows.num_logits].clone() for rows in passes])

    base = logits(BASE)
    same = [size for size in fitting if size == BASE or torch.equal(logits(size), base)]
    pool.release(table)
    return tuple(sorted({*same, BASE}))
