"""The target's draws for all drafts of a step at once.

What may be asked of a draft is computed after all of its nodes, for all drafts, and read in one
copy, for which a device is waited for. What of it counts is still decided by the walk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tandem.engine.sampling.drawing import Rows, draw_batch, has_kernel
from tandem.protos.types import Rule, TokenLogprobs
from tandem.verifier_service.target_sampler import NodeSample, TargetSampler


def sample_batch(samplers: Sequence[TargetSampler]) -> None:
    """Give samplers the draws after all nodes, but for those that sample by themselves."""
    asked = [sampler for sampler in samplers if samples_before_walk(sampler)]
    if not asked:
        return
    rows = [Rows(sampler.rows(), sampler.params, sampler.positions()) for sampler in asked]
    drawn = zip(asked, rows, draw_batch(rows), strict=True)
    tables = [_columns(sampler, each.logits, tokens) for sampler, each, tokens in drawn]
    numbers = iter(torch.cat([table.flatten() for table in tables]).tolist())  # the one copy
    for sampler, table in zip(asked, tables, strict=True):
        count, width = table.shape
        values = [[next(numbers) for _ in range(width)] for _ in range(count)]
        sampler.samples = [_node_sample(row, sampler.params.logprobs) for row in values]


def samples_before_walk(sampler: TargetSampler) -> bool:
    """Whether all nodes are sampled, and not those alone where the walk comes by. The rule `reject`
    looks at whole distributions. On a processor the kernel draws in little time, but to adjust
    logits takes more.
    """
    if sampler.params.rule is Rule.REJECT:
        return False
    on_processor = sampler.logits.device.type == "cpu"
    return not on_processor or (has_kernel(sampler.logits) and not sampler.params.adjusting)


def _columns(sampler: TargetSampler, rows: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """What `_node_sample` reads, after root and nodes: float64 [1 + nodes, columns]."""
    likeliest = rows.argmax(-1) if sampler.params.rule is Rule.TOP1 else drawn
    tokens = torch.stack([drawn, likeliest], 1)  # [1 + nodes, 2]
    columns = [sampler.logits.amax(-1, keepdim=True), tokens]
    if sampler.params.logprobs is not None and not has_kernel(sampler.logits):
        scores = sampler.logits.log_softmax(-1)
        top = scores.topk(sampler.params.logprobs)
        columns += [scores.gather(-1, tokens), top.indices, top.values]
    return torch.cat([column.double() for column in columns], 1)


def _node_sample(row: Sequence[float], count: int | None) -> NodeSample:
    highest, drawn, likeliest, *rest = row
    sample = NodeSample(int(drawn), int(likeliest), math.isnan(highest))
    if count is not None and rest:
        ids, values = map(int, rest[2 : 2 + count]), rest[2 + count :]
        top = tuple(zip(ids, values, strict=True))
        chances = zip((sample.likeliest, sample.drawn), (rest[1], rest[0]), strict=True)
        sample.logprobs = {token: TokenLogprobs(chance, top) for token, chance in chances}
    return sample
