"""Make programs for networks, and verify that a program computes the same as its network, bit for
bit. The program and the network are run on examples, which are chains and trees of tokens. Some
examples have a single row, and others have several rows of two sessions. Each example attends to
the keys of the examples before it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.pool import KVPool
from tandem.engine.forward.cpu.paths import path_plan
from tandem.engine.forward.segment import Segment
from tandem.engine.program.build import Builder
from tandem.engine.program.program import Plan, Program
from tandem.engine.program.tape import Unrecordable, record
from tandem.protos import tree

Run = Callable[[Any], torch.Tensor]
PlanOf = Callable[[Sequence[Segment]], Plan]

# For each recorded pass: the number of rows, and how many of them give logits. The passes are small
# because a recording keeps all tensors. The passes differ by 5 rows and by 3 rows with logits.
# 5 and 3 have no common factor, so a number's change shows which of the two counts it depends on.
RECORDED = ((2, 2), (7, 5))
LENGTH = 60  # maximum number of tokens per session in the examples
TREE = (-1, 0, 0, 1, 1, 2, 4, 4, 0)
EXAMPLES = (1, 19, 6, 1, 9)  # rows per example; the last example is a tree, the others are chains
BESIDE = 3  # rows of the second session in each example that has several rows


@torch.inference_mode()
def proved_program(
    network: PreTrainedModel,
    run: Run,
    pool: KVPool,
    context: int,
    vocabulary: int,
    plan_of: PlanOf = path_plan,
) -> Program:
    """Return a verified program of a network. `run` runs a pass for a plan, and `plan_of` decides
    whether passes have path plans or row plans. Raises Unrecordable, with the reason, if no program
    can be made, or if the program computes other logits than the network.
    """
    with _tables(pool, context) as (recorded, *tables):
        rng = random.Random(0)

        def segment(
            table: PageTable, start: int, parents: Sequence[int], num_logits: int
        ) -> Segment:
            tokens = tuple(rng.choices(range(vocabulary), k=len(parents)))
            return Segment(table, start, tokens, tuple(parents), num_logits)

        plans = [
            plan_of([segment(recorded, 0, tree.chain(rows), num_logits)])
            for rows, num_logits in RECORDED
        ]
        one, two = (record(network, run, plan) for plan in plans)
        program = Builder((one, two), pool, context).program()
        fed = [0, 0]  # number of tokens that each session has been fed
        for rows in EXAMPLES:
            parents = TREE if rows == len(TREE) else tree.chain(rows)
            given = [segment(tables[0], fed[0], parents, min(rows, 5))]
            if rows > 1:
                given.append(segment(tables[1], fed[1], tree.chain(BESIDE), 1))
                fed[1] += BESIDE
            fed[0] += rows
            own = [replace(each, table=tables[2 + index]) for index, each in enumerate(given)]
            if not torch.equal(run(plan_of(given)), program(plan_of(own))):
                raise Unrecordable(f"its program computes different logits for {rows} rows")
    return program


@contextmanager
def _tables(pool: KVPool, context: int) -> Iterator[list[PageTable]]:
    """Yield five page tables and release them afterwards: one for the recordings, two for sessions
    of the network, and two for sessions of the program.
    """
    tables = [pool.allocate(LENGTH) for _ in range(5)] if context >= LENGTH else [None]
    allocated = [table for table in tables if table]
    try:
        if len(allocated) < len(tables):
            raise Unrecordable("the KV cache is too small for the examples that verify a program")
        yield allocated
    finally:
        for table in allocated:
            pool.release(table)
