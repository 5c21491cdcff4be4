"""All drafts of a step judged at once, on a device that is better asked once than often.

What may be asked of a draft is computed behind all of its nodes, for all drafts, and read back in
one copy. What of it counts is still decided by the walk.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch

from engine.sampling import drawing as sampling
from protos.types import Rule, SamplingParams, TokenLogprobs
from verifier_service.judge import Answer, Judge


def answer(judges: Sequence[Judge]) -> None:
    """Let judges know all that they will be asked, but for those whose rule is `reject`: it looks
    at whole distributions, so these find out by themselves.
    """
    asked = [judge for judge in judges if judge.params.rule is not Rule.REJECT]
    if not asked:
        return
    rows = [judge.rows() for judge in asked]  # [1 + nodes, vocab] each
    tables = [_columns(*each) for each in zip(asked, rows, _drawn(asked, rows), strict=True)]
    numbers = iter(torch.cat([table.flatten() for table in tables]).tolist())  # the one copy
    for judge, table in zip(asked, tables, strict=True):
        count, width = table.shape
        found = [[next(numbers) for _ in range(width)] for _ in range(count)]
        judge.answers = [_answer(row, judge.params.logprobs) for row in found]


def _drawn(judges: Sequence[Judge], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What is drawn behind the root and behind each node, int64 [1 + nodes] each: in one go for all
    that draw in the same way.
    """
    alike = defaultdict[SamplingParams, list[int]](list)
    for place, judge in enumerate(judges):
        alike[_way(judge.params)].append(place)
    drawn: dict[int, torch.Tensor] = {}
    for way, places in alike.items():
        seeds = [judges[place].params.seed for place in places for _ in rows[place]]
        positions = [position for place in places for position in judges[place].positions()]
        each = [len(rows[place]) for place in places]
        tokens = sampling.chosen(
            torch.cat([rows[place] for place in places]), way, seeds, positions
        )
        drawn |= dict(zip(places, tokens.split(each), strict=True))
    return [drawn[place] for place in range(len(judges))]


def _way(params: SamplingParams) -> SamplingParams:
    """What of the options decides how adjusted rows are drawn from, but for the seed."""
    if params.greedy:
        return SamplingParams()
    return SamplingParams(params.temperature, params.top_k, params.top_p, min_p=params.min_p)


def _columns(judge: Judge, rows: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """What `_answer` reads, behind the root and behind each node: float64 [1 + nodes, columns]."""
    likeliest = rows.argmax(-1) if judge.params.rule is Rule.TOP1 else drawn
    tokens = torch.stack([drawn, likeliest], 1)  # [1 + nodes, 2]
    columns = [judge.logits.amax(-1, keepdim=True), tokens]
    if judge.params.logprobs is not None:
        scores = judge.logits.log_softmax(-1)
        top = scores.topk(judge.params.logprobs)
        columns += [scores.gather(-1, tokens), top.indices, top.values]
    return torch.cat([column.double() for column in columns], 1)


def _answer(row: Sequence[float], count: int | None) -> Answer:
    highest, drawn, likeliest, *told = row
    known = Answer(int(drawn), int(likeliest), math.isnan(highest))
    if count is not None:
        ids, values = map(int, told[2 : 2 + count]), told[2 + count :]
        top = tuple(zip(ids, values, strict=True))
        chances = zip((known.likeliest, known.drawn), (told[1], told[0]), strict=True)
        known.logprobs = {token: TokenLogprobs(chance, top) for token, chance in chances}
    return known
