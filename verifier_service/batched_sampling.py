"""The target's draws for all drafts of a step at once.

What may be asked of a draft is computed after all of its nodes, for all drafts, and read in one
copy, for which a device is waited for. What of it counts is still decided by the walk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tandem.engine.sampling.adjustment import adjust
from tandem.engine.sampling.device_draws import NAN
from tandem.engine.sampling.drawing import Rows, decided, draw_batch, has_kernel
from tandem.engine.sampling.likeliest import logprobs
from tandem.protos.types import Rule, SamplingParams, TokenLogprobs
from tandem.verifier_service.target_sampler import NodeSample, TargetSampler

LIKELIEST = SamplingParams()  # of all tokens the likeliest one is drawn
TOGETHER = 64  # rows whose log-probabilities are computed at once


@dataclass(frozen=True, slots=True)
class Asked:
    """A sampler, and which of a batch's rows are its own: those that are drawn from, those of which
    the likeliest token is looked for, and those that show whether its logits are numbers.
    """

    sampler: TargetSampler
    drawn: int
    likeliest: int
    checked: int

    @property
    def told(self) -> int | None:
        """How many of the likeliest tokens are told before the walk, if any. On a processor they
        are told of the nodes alone where the walk came by.
        """
        return None if has_kernel(self.sampler.logits) else self.sampler.params.logprobs


def sample_batch(samplers: Sequence[TargetSampler]) -> None:
    """Give samplers the draws after all nodes, but for those that sample by themselves."""
    samplers = [sampler for sampler in samplers if samples_before_walk(sampler)]
    if not samplers:
        return
    batch: list[Rows] = []
    pairs = zip(samplers, _adjusted(samplers), strict=True)
    asked = [_asked(sampler, logits, batch) for sampler, logits in pairs]
    tokens, told = draw_batch(batch), _by_count(asked)
    tables = [_logprobs(same, tokens, count) for count, same in told.items()]
    numbers = iter(_joined(tokens, tables).tolist())  # the one copy
    drawn = [[int(next(numbers)) for _ in rows.positions] for rows in batch]
    for each in asked:
        each.sampler.samples = _samples(each, batch, drawn)
    for count, same in told.items():
        for each in same:
            for node in range(1 + len(each.sampler.draft)):
                columns = [next(numbers) for _ in range(2 + 2 * count)]
                sure = min(drawn[each.drawn][node], drawn[each.likeliest][node]) >= 0
                _tell(each.sampler, node, columns if sure else None, count)


def samples_before_walk(sampler: TargetSampler) -> bool:
    """Whether all nodes are sampled, and not those alone where the walk comes by. The rule `reject`
    looks at whole distributions. On a processor the kernel draws in little time, but to adjust
    logits takes more.
    """
    if sampler.params.rule is Rule.REJECT:
        return False
    on_processor = sampler.logits.device.type == "cpu"
    return not on_processor or (has_kernel(sampler.logits) and not sampler.params.adjusting)


def _adjusted(samplers: Sequence[TargetSampler]) -> list[torch.Tensor]:
    """The logits of each as its options want them, [1 + nodes, vocab]."""
    adjusting = [sampler for sampler in samplers if sampler.params.adjusting]
    if not adjusting:
        return [sampler.logits for sampler in samplers]
    changes = [change for sampler in adjusting for change in sampler.adjustments()]
    rows = adjust([sampler.logits for sampler in adjusting], changes)
    adjusted = iter(rows.split([len(sampler.logits) for sampler in adjusting]))
    return [next(adjusted) if each.params.adjusting else each.logits for each in samplers]


def _asked(sampler: TargetSampler, logits: torch.Tensor, batch: list[Rows]) -> Asked:
    """Add the rows of a sampler to a batch, with its adjusted logits."""

    def added(rows: Rows) -> int:
        batch.append(rows)
        return len(batch) - 1

    rows = Rows(logits, sampler.params, sampler.positions())
    drawn = likeliest = checked = added(rows)
    if sampler.params.rule is Rule.TOP1 and not sampler.params.greedy:
        likeliest = added(rows._replace(params=LIKELIEST))
    if sampler.params.adjusting:  # which may have removed what is not a number
        checked = added(Rows(sampler.logits, LIKELIEST, rows.positions))
    return Asked(sampler, drawn, likeliest, checked)


def _by_count(asked: Sequence[Asked]) -> dict[int, list[Asked]]:
    """Those of which log-probabilities are told before the walk."""
    told = defaultdict[int, list[Asked]](list)
    for each in asked:
        if each.told is not None:
            told[each.told].append(each)
    return told


def _logprobs(same: Sequence[Asked], tokens: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """Log-probabilities after all nodes, float64 [nodes, 2 + 2 count]: of the token that was drawn
    and of the likeliest one; then the ids of the likeliest ones, and theirs.
    """
    drawn = torch.cat([tokens[each.drawn] for each in same])
    likeliest = torch.cat([tokens[each.likeliest] for each in same])
    pairs = torch.stack([drawn, likeliest], 1).clamp(min=0)
    rows = [row for each in same for row in each.sampler.logits.unbind()]
    parts = []
    for start in range(0, len(rows), TOGETHER):
        part = slice(start, start + TOGETHER)
        scores = torch.stack(rows[part]).log_softmax(-1)
        top = scores.topk(count)
        own = scores.gather(-1, pairs[part])
        parts.append(torch.cat([each.double() for each in (own, top.indices, top.values)], 1))
    return torch.cat(parts)


def _joined(tokens: Sequence[torch.Tensor], tables: Sequence[torch.Tensor]) -> torch.Tensor:
    """All numbers of all, one after the other."""
    every = torch.cat(list(tokens))
    if not tables:
        return every
    return torch.cat([every.double(), *(table.flatten() for table in tables)])


def _samples(each: Asked, batch: Sequence[Rows], drawn: Sequence[list[int]]) -> list[NodeSample]:
    """What may be asked about each node."""
    overflowed = [token == NAN for token in drawn[each.checked]]
    own, likeliest = drawn[each.drawn], drawn[each.likeliest]
    if not any(overflowed):  # else nothing is asked about them
        own = decided(batch[each.drawn], own)
        if each.likeliest == each.drawn:
            likeliest = own
        else:
            likeliest = decided(batch[each.likeliest], likeliest)
    return [NodeSample(*row) for row in zip(own, likeliest, overflowed, strict=True)]


def _tell(sampler: TargetSampler, node: int, columns: Sequence[float] | None, count: int) -> None:
    """Add log-probabilities to the sample after a node, those in `columns` if they are known."""
    sample = sampler.samples[node]
    tokens = sample.drawn, sample.likeliest
    if columns:
        top = tuple(zip(map(int, columns[2 : 2 + count]), columns[2 + count :], strict=True))
        chances = zip(tokens, columns[:2], strict=True)
        sample.logprobs = {token: TokenLogprobs(chance, top) for token, chance in chances}
    elif not sample.overflowed:
        row = sampler.logits[node]
        sample.logprobs = {token: logprobs(row, token, count) for token in tokens}
