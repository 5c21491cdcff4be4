"""Draw the target's tokens for all drafts of a step at once.

The samples after all nodes of all drafts are computed together and read in one copy, because each
copy waits for the device. The walk still decides which of the samples count.
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

GREEDY = SamplingParams()  # draws the likeliest of all tokens
MAX_LOGPROB_ROWS = 64  # rows whose log-probabilities are computed at once


@dataclass(frozen=True, slots=True)
class BatchedSampler:
    """A sampler, and the places in a batch of three sets of its rows: the rows that tokens are
    drawn from, the rows whose likeliest tokens are found, and the rows that show whether the logits
    are numbers.
    """

    sampler: TargetSampler
    drawn: int
    likeliest: int
    checked: int

    @property
    def reported(self) -> int | None:
        """How many of the likeliest tokens are reported with log-probabilities before the walk;
        None if no log-probabilities are computed then. On a CPU the log-probabilities are computed
        after the walk, only for the nodes that it reached.
        """
        return None if has_kernel(self.sampler.logits) else self.sampler.params.logprobs


def sample_batch(samplers: Sequence[TargetSampler]) -> None:
    """Give each sampler the samples after all its nodes, unless it samples during the walk."""
    samplers = [sampler for sampler in samplers if samples_before_walk(sampler)]
    if not samplers:
        return
    batch: list[Rows] = []
    pairs = zip(samplers, _adjusted(samplers), strict=True)
    batched = [_add_rows(sampler, logits, batch) for sampler, logits in pairs]
    tokens, reported = draw_batch(batch), _by_count(batched)
    tables = [_logprobs(same, tokens, count) for count, same in reported.items()]
    numbers = iter(_joined(tokens, tables).tolist())  # the only copy from the device
    drawn = [[int(next(numbers)) for _ in rows.positions] for rows in batch]
    for each in batched:
        each.sampler.samples = _samples(each, batch, drawn)
    for count, same in reported.items():
        for each in same:
            for node in range(1 + len(each.sampler.draft)):
                columns = [next(numbers) for _ in range(2 + 2 * count)]
                sure = min(drawn[each.drawn][node], drawn[each.likeliest][node]) >= 0
                _add_logprobs(each.sampler, node, columns if sure else None, count)


def samples_before_walk(sampler: TargetSampler) -> bool:
    """Tell whether all nodes are sampled before the walk, not only those that the walk reaches. The
    rule `reject` samples during the walk, because it needs whole distributions. On a CPU the kernel
    draws quickly, but adjusting the logits of all nodes takes longer.
    """
    if sampler.params.rule is Rule.REJECT:
        return False
    on_processor = sampler.logits.device.type == "cpu"
    return not on_processor or (has_kernel(sampler.logits) and not sampler.params.adjusting)


def _adjusted(samplers: Sequence[TargetSampler]) -> list[torch.Tensor]:
    """Return the logits of each sampler, adjusted by its options, [1 + nodes, vocab]."""
    adjusting = [sampler for sampler in samplers if sampler.params.adjusting]
    if not adjusting:
        return [sampler.logits for sampler in samplers]
    changes = [change for sampler in adjusting for change in sampler.adjustments()]
    rows = adjust([sampler.logits for sampler in adjusting], changes)
    adjusted = iter(rows.split([len(sampler.logits) for sampler in adjusting]))
    return [next(adjusted) if each.params.adjusting else each.logits for each in samplers]


def _add_rows(sampler: TargetSampler, logits: torch.Tensor, batch: list[Rows]) -> BatchedSampler:
    """Add a sampler's rows, with its adjusted logits, to a batch."""

    def added(rows: Rows) -> int:
        batch.append(rows)
        return len(batch) - 1

    rows = Rows(logits, sampler.params, sampler.positions())
    drawn = likeliest = checked = added(rows)
    if sampler.params.rule is Rule.TOP1 and not sampler.params.greedy:
        likeliest = added(rows._replace(params=GREEDY))
    if sampler.params.adjusting:  # adjusting may have removed logits that are not numbers
        checked = added(Rows(sampler.logits, GREEDY, rows.positions))
    return BatchedSampler(sampler, drawn, likeliest, checked)


def _by_count(batched: Sequence[BatchedSampler]) -> dict[int, list[BatchedSampler]]:
    """Group the samplers that report log-probabilities before the walk by the count asked for."""
    reported = defaultdict[int, list[BatchedSampler]](list)
    for each in batched:
        if each.reported is not None:
            reported[each.reported].append(each)
    return reported


def _logprobs(
    same: Sequence[BatchedSampler], tokens: Sequence[torch.Tensor], count: int
) -> torch.Tensor:
    """Return log-probabilities after all nodes, float64 [nodes, 2 + 2 count]: those of the drawn
    and of the likeliest token, then the ids and log-probabilities of the `count` likeliest tokens.
    """
    drawn = torch.cat([tokens[each.drawn] for each in same])
    likeliest = torch.cat([tokens[each.likeliest] for each in same])
    pairs = torch.stack([drawn, likeliest], 1).clamp(min=0)
    rows = [row for each in same for row in each.sampler.logits.unbind()]
    parts = []
    for start in range(0, len(rows), MAX_LOGPROB_ROWS):
        part = slice(start, start + MAX_LOGPROB_ROWS)
        scores = torch.stack(rows[part]).log_softmax(-1)
        top = scores.topk(count)
        own = scores.gather(-1, pairs[part])
        parts.append(torch.cat([each.double() for each in (own, top.indices, top.values)], 1))
    return torch.cat(parts)


def _joined(tokens: Sequence[torch.Tensor], tables: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all numbers of `tokens` and then all numbers of `tables`, in one tensor."""
    every = torch.cat(list(tokens))
    if not tables:
        return every
    return torch.cat([every.double(), *(table.flatten() for table in tables)])


def _samples(
    each: BatchedSampler, batch: Sequence[Rows], drawn: Sequence[list[int]]
) -> list[NodeSample]:
    """Return the sample after each node."""
    overflowed = [token == NAN for token in drawn[each.checked]]
    own, likeliest = drawn[each.drawn], drawn[each.likeliest]
    if not any(overflowed):  # the draws are used only if no row overflowed
        own = decided(batch[each.drawn], own)
        if each.likeliest == each.drawn:
            likeliest = own
        else:
            likeliest = decided(batch[each.likeliest], likeliest)
    return [NodeSample(*row) for row in zip(own, likeliest, overflowed, strict=True)]


def _add_logprobs(
    sampler: TargetSampler, node: int, columns: Sequence[float] | None, count: int
) -> None:
    """Add log-probabilities to the sample after a node. The log-probabilities are taken from
    `columns` if given, or else computed from the node's logits.
    """
    sample = sampler.samples[node]
    tokens = sample.drawn, sample.likeliest
    if columns:
        top = tuple(zip(map(int, columns[2 : 2 + count]), columns[2 + count :], strict=True))
        chances = zip(tokens, columns[:2], strict=True)
        sample.logprobs = {token: TokenLogprobs(chance, top) for token, chance in chances}
    elif not sample.overflowed:
        row = sampler.logits[node]
        sample.logprobs = {token: logprobs(row, token, count) for token in tokens}
