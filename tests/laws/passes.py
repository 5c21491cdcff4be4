"""A network with this project's layers and some KV memory; its passes can run as in transformers or
as a program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.pool import KVPool
from tandem.engine.forward.attention import AttentionStep, in_step
from tandem.engine.forward.cpu.kernels import Kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.cpu.paths import PathPlan, path_plan
from tandem.engine.forward.segment import Segment
from tandem.engine.model.linears import recording_inputs, replace_layers
from tandem.engine.model.probe import install_attention
from tandem.engine.program.program import Program
from tandem.engine.program.proof import proved_program
from tandem.protos import tree
from tests.families import CONTEXT, VOCABULARY, build

CPU = torch.device("cpu")
POSITIONS = 2048


@dataclass(frozen=True)
class Passes:
    """A network, and the KV pool that its attention reads."""

    network: PreTrainedModel
    pool: KVPool
    context: int

    @classmethod
    def of(cls, network: PreTrainedModel, dtype: torch.dtype = torch.float32) -> Passes:
        """Return passes of a network in which all replaceable layers are replaced."""
        network.to(dtype).requires_grad_(False)
        with recording_inputs(network) as groups:
            found = install_attention(network, CONTEXT)
        replace_layers(network, groups, PanelLinear)
        pool = KVPool(found.layers, POSITIONS, dtype, CPU)
        return cls(network, pool, found.context_length)

    def run(self, plan: PathPlan) -> torch.Tensor:
        """Compute the logits of a step with the network's own code."""
        with in_step(AttentionStep(plan, self.pool, self.context)), torch.inference_mode():
            logits: torch.Tensor = self.network(
                input_ids=plan.token_ids,
                position_ids=plan.positions,
                attention_mask=None,
                use_cache=False,
                logits_to_keep=plan.logits_rows,
            ).logits[0]
        return logits

    def program(self) -> Program:
        """Return the network's program. Raises Unrecordable."""
        return proved_program(self.network, self.run, self.pool, self.context, VOCABULARY)

    def tables(self, count: int) -> list[PageTable]:
        """Return page tables of sessions whose pages lie in random order."""
        tables = [self.pool.allocate(64) for _ in range(2 * count)]
        found = [table for table in tables if table]
        for table, other in zip(found[:count], found[count:], strict=True):
            table.pages += other.pages
        return random.Random(0).sample(found[:count], count)


def step(
    tables: Sequence[PageTable], fed: list[int], rng: random.Random, most: int
) -> list[tuple[PageTable, Segment]]:
    """Return the next segments of sessions that hold `fed` tokens each: a chunk of a prompt, in
    some with a tree below it that is dropped afterwards.
    """
    found = []
    for number in rng.sample(range(len(tables)), rng.randint(1, len(tables))):
        trunk, drafted = rng.randint(1, most), rng.choice((0, 0, 3, 9))
        below = tuple(rng.randrange(-1, node) if node else -1 for node in range(drafted))
        parents = tree.hang(trunk, below)
        if fed[number] + len(parents) > tables[number].capacity:
            continue
        tokens = tuple(rng.choices(range(VOCABULARY), k=len(parents)))
        wanted = rng.randint(0, len(parents))
        segment = Segment(tables[number], fed[number], tokens, parents, wanted)
        fed[number] += trunk
        found.append((tables[number], segment))
    return found


Way = Callable[[PathPlan], torch.Tensor]


def logits(way: Way, segments: Sequence[Segment]) -> torch.Tensor:
    """Return the logits that a step computes for all wanted rows, [rows, vocab]."""
    return way(path_plan(segments)).clone()


def of_family(family: str, dtype: torch.dtype = torch.float32) -> Passes:
    """Passes of a tiny random model."""
    return Passes.of(build(family, 0), dtype)


def differing(scene: Passes, kernels: Kernels, seed: int, steps: int = 6) -> int:
    """Return the steps in which a program's logits differ from the network's. Each way has its own
    memory, so that the way continues from the keys that it stored itself.
    """
    program, rng = scene.program(), random.Random(seed)
    ours, theirs = scene.tables(3), scene.tables(3)
    fed, found = [0] * len(ours), 0
    for number in range(steps):
        kernels.threads = 1 + number % 3
        drawn = step(ours, fed, rng, 12)
        mine = [segment for _, segment in drawn]
        own = [replace(each, table=theirs[ours.index(table)]) for table, each in drawn]
        found += not torch.equal(logits(program, mine), logits(scene.run, own))
    return found
