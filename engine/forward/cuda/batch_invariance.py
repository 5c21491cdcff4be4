"""Batch invariance of cuBLAS: settings that make a row's bits nearly independent of the number of
rows, and a trial that finds the pass sizes with equal bits.

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
SPLIT_SETTING_SINCE = "2.10"  # the version of torch with a setting for the splitting of sums
BASE = 64  # with up to this number of rows, a pass takes hardly longer than one with a single row


def disable_split_k() -> None:
    """Stop cuBLAS on all CUDA devices from splitting sums and from rounding sums before they are
    complete. The process must not have multiplied on a CUDA device before, because cuBLAS reads the
    size of its workspace at the first product.
    """
    os.environ.update(WORKSPACES)
    product = torch.backends.cuda.matmul
    never = (False, False) if torch.__version__ >= SPLIT_SETTING_SINCE else False
    product.allow_fp16_reduced_precision_reduction = never
    product.allow_bf16_reduced_precision_reduction = never
    product.fp32_precision = "ieee"
    if torch.version.cuda:  # a build without CUDA has no libraries to prefer
        torch.backends.cuda.preferred_blas_library("cublaslt")


def invariant_sizes(
    run: Run,
    pool: KVPool,
    layout: KVLayout,
    longest: int,
    vocabulary: int,
    sizes: Sequence[int] = SIZES,
) -> tuple[int, ...]:
    """Return the pass sizes that give every row of a text the same bits as passes of `BASE` rows.
    The text is as long as the largest size that the model and the pool allow. Larger sizes are not
    tested.
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
