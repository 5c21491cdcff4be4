"""Programs for networks, and the proof that they compute the same: bit for bit, of examples that
are fed in lines and trees, one row alone and many of two sessions, on top of each other's keys.
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

RECORDED = ((2, 2), (7, 5))  # rows of the passes, and how many give logits: few, since all tensors
# of a recording are held; and differences without a common factor tell what depends on which
LENGTH = 60  # tokens of an example, at most
TREE = (-1, 0, 0, 1, 1, 2, 4, 4, 0)
EXAMPLES = (1, 19, 6, 1, 9)  # rows that follow each other, all but the last in a line
BESIDE = 3  # of another session


@torch.inference_mode()
def proved_program(
    network: PreTrainedModel,
    run: Run,
    pool: KVPool,
    context: int,
    vocabulary: int,
    plan_of: PlanOf = path_plan,
) -> Program:
    """The program of a network whose passes `run` makes, along paths or by rows, as `plan_of` has
    it. Raises Unrecordable with the reason if there is none, or none that computes the same.
    """
    with _tables(pool, context) as (recorded, *tables):
        rng = random.Random(0)

        def segment(table: PageTable, start: int, parents: Sequence[int], wanted: int) -> Segment:
            tokens = tuple(rng.choices(range(vocabulary), k=len(parents)))
            return Segment(table, start, tokens, tuple(parents), wanted)

        plans = [
            plan_of([segment(recorded, 0, tree.chain(rows), wanted)]) for rows, wanted in RECORDED
        ]
        one, two = (record(network, run, plan) for plan in plans)
        program = Builder((one, two), pool, context).program()
        fed = [0, 0]  # tokens of two sessions
        for rows in EXAMPLES:
            parents = TREE if rows == len(TREE) else tree.chain(rows)
            given = [segment(tables[0], fed[0], parents, min(rows, 5))]
            if rows > 1:
                given.append(segment(tables[1], fed[1], tree.chain(BESIDE), 1))
                fed[1] += BESIDE
            fed[0] += rows
            own = [replace(each, table=tables[2 + place]) for place, each in enumerate(given)]
            if not torch.equal(run(plan_of(given)), program(plan_of(own))):
                raise Unrecordable(f"its program computes something else of {rows} rows")
    return program


@contextmanager
def _tables(pool: KVPool, context: int) -> Iterator[list[PageTable]]:
    """Those of the recordings, and of two sessions for each way."""
    tables = [pool.allocate(LENGTH) for _ in range(5)] if context >= LENGTH else [None]
    allocated = [table for table in tables if table]
    try:
        if len(allocated) < len(tables):
            raise Unrecordable("there is no room for examples")
        yield allocated
    finally:
        for table in allocated:
            pool.release(table)
