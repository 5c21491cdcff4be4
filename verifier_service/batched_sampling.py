"""Sample the target's tokens for all drafts of a step at once.

The samples after all nodes of all drafts are computed together and copied from the device once,
because each copy has to wait for the device. The acceptance walk still decides which of the samples
are used.
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

GREEDY = SamplingParams()  # always selects the likeliest token
MAX_LOGPROB_ROWS = 64  # number of rows whose log-probabilities are computed at once


@dataclass(frozen=True, slots=True)
class BatchedSampler:
    """A sampler, and the batch indices of three sets of its rows. Tokens are drawn from the first
    set, the likeliest token is determined for the second set, and the third set is checked for
    logits that are not numbers.
    """

    sampler: TargetSampler
    drawn: int
    likeliest: int
    checked: int

    @property
    def reported(self) -> int | None:
        """The number of likeliest tokens whose log-probabilities are computed before the walk. The
        value is None if no log-probabilities are computed before the walk. On a CPU,
        log-probabilities are computed after the walk, only for the nodes that the walk reached.
        """
        return None if has_kernel(self.sampler.logits) else self.sampler.params.logprobs


def sample_batch(samplers: Sequence[TargetSampler]) -> None:
    """Give each sampler the samples after all its nodes, except for samplers that sample during the
    walk.
    """
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
    """Tell whether a sampler samples after all nodes before the walk, instead of after the nodes
    that the walk reaches. With the rule `reject`, sampling happens during the walk, because the
    rule needs whole distributions. On a CPU, the kernel samples quickly, but adjusting the logits
    after all nodes would take longer than sampling during the walk.
    """
    if sampler.params.rule is Rule.REJECT:
        return False
    on_processor = sampler.logits.device.type == "cpu"
    return not on_processor or (has_kernel(sampler.logits) and not sampler.params.adjusting)


def _adjusted(samplers: Sequence[TargetSampler]) -> list[torch.Tensor]:
    """Return the logits [1 + nodes, vocab] of each sampler, adjusted by its sampling options."""
    adjusting = [sampler for sampler in samplers if sampler.params.adjusting]
    if not adjusting:
        return [sampler.logits for sampler in samplers]
    changes = [change for sampler in adjusting for change in sampler.adjustments()]
    rows = adjust([sampler.logits for sampler in adjusting], changes)
    adjusted = iter(rows.split([len(sampler.logits) for sampler in adjusting]))
    return [next(adjusted) if each.params.adjusting else each.logits for each in samplers]


def _add_rows(sampler: TargetSampler, logits: torch.Tensor, batch: list[Rows]) -> BatchedSampler:
    """Add the rows of a sampler, with its adjusted logits, to a batch."""

    def added(rows: Rows) -> int:
        batch.append(rows)
        return len(batch) - 1

    rows = Rows(logits, sampler.params, sampler.positions())
    drawn = likeliest = checked = added(rows)
    if sampler.params.rule is Rule.TOP1 and not sampler.params.greedy:
        likeliest = added(rows._replace(params=GREEDY))
    if sampler.params.adjusting:  # the adjustment may have removed logits that are not numbers
        checked = added(Rows(sampler.logits, GREEDY, rows.positions))
    return BatchedSampler(sampler, drawn, likeliest, checked)


def _by_count(batched: Sequence[BatchedSampler]) -> dict[int, list[BatchedSampler]]:
    """Group the samplers that compute log-probabilities before the walk by the requested number of
    tokens.
    """
    reported = defaultdict[int, list[BatchedSampler]](list)
    for each in batched:
        if each.reported is not None:
            reported[each.reported].append(each)
    return reported


def _logprobs(
    same: Sequence[BatchedSampler], tokens: Sequence[torch.Tensor], count: int
) -> torch.Tensor:
    """Return a table of log-probabilities after all nodes, float64 [nodes, 2 + 2 count]. Each row
    holds the log-probabilities of the drawn and of the likeliest token, then the ids of the `count`
    likeliest tokens, then their log-probabilities.
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
    """Return all elements of `tokens`, followed by all elements of `tables`, in one tensor."""
    every = torch.cat(list(tokens))
    if not tables:
        return every
    return torch.cat([every.double(), *(table.flatten() for table in tables)])


def _samples(
    each: BatchedSampler, batch: Sequence[Rows], drawn: Sequence[list[int]]
) -> list[NodeSample]:
    """Return the samples after the root and after each node of one sampler's draft."""
    overflowed = [token == NAN for token in drawn[each.checked]]
    own, likeliest = drawn[each.drawn], drawn[each.likeliest]
    if not any(overflowed):  # if a row overflowed, no draw is used
        own = decided(batch[each.drawn], own)
        if each.likeliest == each.drawn:
            likeliest = own
        else:
            likeliest = decided(batch[each.likeliest], likeliest)
    return [NodeSample(*row) for row in zip(own, likeliest, overflowed, strict=True)]


def _add_logprobs(
    sampler: TargetSampler, node: int, columns: Sequence[float] | None, count: int
) -> None:
    """Add the log-probabilities of the drawn and of the likeliest token to the sample after a node.
    The log-probabilities are taken from `columns` if given, or else computed from the node's
    logits.
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
