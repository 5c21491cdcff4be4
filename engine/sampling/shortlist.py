"""The likeliest tokens of a row of logits, and what top-k, top-p and min-p leave of it.

`engine.sampling.sampler.warp` defines what they leave. Here it is found without sorting a
vocabulary, and whatever rounding could decide otherwise is called unsure, so that the definition
can be asked. A row is looked at by itself: nothing here depends on the rest of the batch.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch.nn import functional

from tandem.protos.types import SamplingParams

SIZE = 256  # likeliest tokens that a list has at least
COLUMNS = 4096  # into which a row is dealt out
MARGIN = 1e-4  # of scores and of probabilities; float32 rounds them by some 1e-6


def likeliest(row: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of the `count` likeliest tokens of a row [vocab] on the processor, and of those that
    are about as likely as the last of them; likeliest first, among equals the lowest id, int64.

    The best of `count` columns of a row are `count` tokens; so the least of these bests is a bound
    that the `count` likeliest tokens reach.
    """
    rows = len(row) // COLUMNS
    if rows > 1 and 4 * count <= COLUMNS:
        best = row[: rows * COLUMNS].view(rows, COLUMNS).amax(0)
    else:
        best = row
    bound = best.topk(min(count, len(row))).values[-1].item()
    ids = torch.from_numpy(np.flatnonzero(row.numpy() >= bound))
    return ids[row[ids].sort(descending=True, stable=True).indices]


class Shortlist:
    """The likeliest tokens of an adjusted row [vocab] on the processor under some options, at least
    `size` unless top-k leaves fewer.

    `ids` [tokens] are likeliest first; `scores` [tokens] are their log-probabilities but for what
    normalises these, that of the likeliest being 0. The first `sure` of them are kept for certain,
    those from `possible` on are not, and if the list is `whole` no other token is. What lies
    between is decided by rounding, or by how equals happen to be sorted.
    """

    def __init__(self, row: torch.Tensor, params: SamplingParams, size: int = SIZE) -> None:
        self._row, self._params = row, params
        self.ids = likeliest(row, size + params.top_k)
        self._best = row[self.ids[0]]
        self.scores = self.score(self.ids)
        self.whole = len(self.ids) == len(row)
        self.sure = self.possible = len(self.ids)
        if params.top_k:
            self._keep_k(params.top_k)
        if params.top_p < 1:
            self._keep_p(params.top_p)
        if params.min_p:
            self._keep_min(math.log(params.min_p))

    def score(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of any tokens of the row, [tokens]."""
        return (self._row[tokens] - self._best) / (self._params.temperature or 1.0)

    @cached_property
    def weights(self) -> torch.Tensor:
        """Of all tokens of the row, [vocab]: probabilities before top-k, top-p and min-p, but for
        what normalises them; that of the likeliest is 1.
        """
        scores = self._row - self._best
        return scores.div_(self._params.temperature or 1.0).exp_()

    @cached_property
    def total(self) -> float:
        """What all weights that top-k leaves add up to."""
        return float(self.scores.exp().sum() if self._params.top_k else self.weights.sum())

    def keeps(self, token: int) -> bool | None:
        """Whether a token that is not on the list is kept; None if that is unsure."""
        weight, params = float(self.weights[token]), self._params
        if weight < params.min_p * (1 - MARGIN):
            return False
        if params.top_p < 1:
            above = float(functional.threshold(self.weights, weight, 0.0).sum()) / self.total
            if above >= params.top_p + MARGIN:
                return False
            through = above + weight * int((self.weights == weight).sum()) / self.total
            if through >= params.top_p - MARGIN:
                return None
        return True if weight > params.min_p * (1 + MARGIN) else None

    def logprobs(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first `count` ids and log-probabilities, both [count]; -inf for what is not kept.
        They are near those of the definition: what is unsure counts as kept, and of a nucleus that
        goes on after the list it is assumed that it holds no more than it must.
        """
        scores = self.scores[: self.possible]
        mass = float(scores.exp().sum()) if self.whole else self.total * self._params.top_p
        scores = functional.pad(scores - math.log(mass), (0, len(self.ids)), value=-math.inf)
        return self.ids[:count], scores[:count]

    def _keep_k(self, count: int) -> None:
        """The `count` likeliest, and what is as likely as the last of them."""
        last = self.scores[min(count, len(self.scores)) - 1]
        unsure = not self.whole and bool(last == self.scores[-1])  # others may be equal to it
        self.possible = int((self.scores >= last).sum())
        self.scores = self.scores[: self.possible]
        self.sure, self.whole = 0 if unsure else self.possible, True

    def _keep_p(self, share: float) -> None:
        """The likeliest until their probabilities add up to `share`; which of equals is unsure."""
        masses = self.scores.double().exp() / self.total
        before = masses.cumsum(0) - masses
        first = max(1, int((before < share - MARGIN).sum()))  # the likeliest is always kept
        end = int((before < share + MARGIN).sum())
        if first < len(before) or not self.whole:  # others may be equal to the last
            first = int((self.scores > self.scores[min(first, len(before) - 1)]).sum())
        self.sure = min(self.sure, first)
        self.possible = int((self.scores >= self.scores[end - 1]).sum())
        self.whole = self.whole or self.possible < len(self.scores)

    def _keep_min(self, least: float) -> None:
        """Those whose score is at least this."""
        top = self.scores == 0
        self.sure = min(self.sure, int((top | (self.scores > least + MARGIN)).sum()))
        self.possible = min(self.possible, int((top | (self.scores > least - MARGIN)).sum()))
        self.whole = self.whole or self.possible < len(self.scores)
