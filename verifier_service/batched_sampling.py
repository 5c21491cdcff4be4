"""The target's draws for all drafts of a step at once, on a device that is slow to read from.

What may be asked of a draft is computed after all of its nodes, for all drafts, and read back in
one copy. What of it counts is still decided by the walk.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from tandem.engine.sampling import sampler as sampling
from tandem.protos.types import Rule, SamplingParams, TokenLogprobs
from tandem.verifier_service.target_sampler import NodeSample, TargetSampler


def sample_batch(samplers: Sequence[TargetSampler]) -> None:
    """Give samplers the draws after all nodes, but for those whose rule is `reject`: it looks
    at whole distributions, so these draw by themselves.
    """
    asked = [sampler for sampler in samplers if sampler.params.rule is not Rule.REJECT]
    if not asked:
        return
    rows = [sampler.rows() for sampler in asked]  # [1 + nodes, vocab] each
    tables = [_columns(*each) for each in zip(asked, rows, _drawn(asked, rows), strict=True)]
    numbers = iter(torch.cat([table.flatten() for table in tables]).tolist())  # the one copy
    for sampler, table in zip(asked, tables, strict=True):
        count, width = table.shape
        values = [[next(numbers) for _ in range(width)] for _ in range(count)]
        sampler.samples = [_node_sample(row, sampler.params.logprobs) for row in values]


def _drawn(samplers: Sequence[TargetSampler], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What is drawn after the root and after each node, int64 [1 + nodes] each: in one go for all
    that draw with the same options.
    """
    by_options = defaultdict[SamplingParams, list[int]](list)
    for place, sampler in enumerate(samplers):
        by_options[_draw_options(sampler.params)].append(place)
    drawn: dict[int, torch.Tensor] = {}
    for options, places in by_options.items():
        seeds = [samplers[place].params.seed for place in places for _ in rows[place]]
        positions = [position for place in places for position in samplers[place].positions()]
        each = [len(rows[place]) for place in places]
        tokens = sampling.draw_rows(
            torch.cat([rows[place] for place in places]), options, seeds, positions
        )
        drawn |= dict(zip(places, tokens.split(each), strict=True))
    return [drawn[place] for place in range(len(samplers))]


def _draw_options(params: SamplingParams) -> SamplingParams:
    """What of the options decides how adjusted rows are drawn from, but for the seed."""
    if params.greedy:
        return SamplingParams()
    return SamplingParams(params.temperature, params.top_k, params.top_p, min_p=params.min_p)


def _columns(sampler: TargetSampler, rows: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """What `_node_sample` reads, after root and nodes: float64 [1 + nodes, columns]."""
    likeliest = rows.argmax(-1) if sampler.params.rule is Rule.TOP1 else drawn
    tokens = torch.stack([drawn, likeliest], 1)  # [1 + nodes, 2]
    columns = [sampler.logits.amax(-1, keepdim=True), tokens]
    if sampler.params.logprobs is not None:
        scores = sampler.logits.log_softmax(-1)
        top = scores.topk(sampler.params.logprobs)
        columns += [scores.gather(-1, tokens), top.indices, top.values]
    return torch.cat([column.double() for column in columns], 1)


def _node_sample(row: Sequence[float], count: int | None) -> NodeSample:
    highest, drawn, likeliest, *rest = row
    sample = NodeSample(int(drawn), int(likeliest), math.isnan(highest))
    if count is not None:
        ids, values = map(int, rest[2 : 2 + count]), rest[2 + count :]
        top = tuple(zip(ids, values, strict=True))
        chances = zip((sample.likeliest, sample.drawn), (rest[1], rest[0]), strict=True)
        sample.logprobs = {token: TokenLogprobs(chance, top) for token, chance in chances}
    return sample
