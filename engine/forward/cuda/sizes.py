"""A trial that finds out which sizes of pass may take turns in exact mode.

Libraries choose matrix kernels by the number of rows, and some kernels round differently.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from tandem.engine.cache.pool import KVPool
from tandem.engine.forward.cuda.graphs import Run
from tandem.engine.forward.cuda.rows import KVLayout
from tandem.engine.forward.cuda.table import SIZES, row_plans
from tandem.engine.forward.segment import Segment
from tandem.protos import tree

BASE = 64  # a pass of up to so many rows takes hardly longer than a pass of a single row


def invariant_sizes(
    run: Run,
    pool: KVPool,
    layout: KVLayout,
    longest: int,
    vocabulary: int,
    sizes: Sequence[int] = SIZES,
) -> tuple[int, ...]:
    """Return the sizes whose passes give every row of a text the same bits as passes of `BASE`
    rows. The text is as long as the largest size, or as model and pool allow; larger sizes are left
    out.
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
        return torch.cat([run(rows)[: rows.wanted].clone() for rows in passes])

    base = logits(BASE)
    same = [size for size in fitting if size == BASE or torch.equal(logits(size), base)]
    pool.release(table)
    return tuple(sorted({*same, BASE}))
