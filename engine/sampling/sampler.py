"""Turn logits into the next token: apply bias and penalties, warp the distribution, add keyed
noise, take the maximum.

Options that depend on earlier tokens take a tree node's path into account, so the node is sampled
exactly as if its path were part of the text. The options are applied in the same order as in
transformers: bias, penalties, suppressed tokens, temperature, top-k, top-p, min-p. `warp` and
`draws` are the reference implementation for all devices. The compiled kernels in `drawing` draw the
same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tandem.engine.sampling.adjustment import Adjustment, Ids, adjust
from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.engine.sampling.noise import gumbel
from tandem.protos.types import SamplingParams

COLDEST = 1e-30  # lowest temperature; the reciprocal of a much lower one overflows on a GPU
NONE = np.empty(0, np.int64)
ROWS_AT_ONCE = 32  # rows that are processed at once, which takes 32 bytes of memory per logit


class TokenCounts:
    """Counts how often each token occurs in a text, and updates the counts as the text grows."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._indices: dict[int, int] = {}  # index of each token in `_ids` and `_counts`
        self._ids = NONE
        self._counts = NONE
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._ids, self._counts = self._with(tokens)
        for index in range(len(self._indices), len(self._ids)):
            self._indices[int(self._ids[index])] = index

    def of(self, path: Sequence[int], vocabulary: int) -> tuple[Ids, Ids]:
        """Return the distinct tokens of the text and of a path after it, and how often each occurs,
        both int64 [tokens]. Token ids of `vocabulary` or more are left out. The path is not added
        to the text.
        """
        ids, counts = self._with(path)
        known = ids < vocabulary
        return ids[known], counts[known]

    def _with(self, tokens: Sequence[int]) -> tuple[Ids, Ids]:
        more = Counter(tokens)
        fresh = {token: times for token, times in more.items() if token not in self._indices}
        ids = np.concatenate([self._ids, np.array(list(fresh), np.int64)])
        counts = np.concatenate([self._counts, np.array(list(fresh.values()), np.int64)])
        for token in more.keys() - fresh.keys():
            counts[self._indices[token]] += more[token]
        return ids, counts


class LogitsProcessor:
    """Applies the sampling options to the logits that follow the text `tokens` and a path of
    proposed tokens, before a token is drawn.
    """

    def __init__(self, sampling: SamplingParams, tokens: Sequence[int]) -> None:
        self.length = len(tokens)
        self.matcher: GrammarMatcher | None = None  # the matcher, set once the grammar is compiled
        self._sampling = sampling
        repeating = sampling.repetition_penalty != 1
        counting = sampling.presence_penalty or sampling.frequency_penalty
        self._text = TokenCounts(tokens) if repeating else None
        self._completion = TokenCounts(tokens[sampling.prompt_length :]) if counting else None
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float64)
        self._ends = np.array(sampling.end_tokens, np.int64)
        self._suppressed = np.array(sampling.suppress_tokens, np.int64)
        self._not_first = np.array(sampling.begin_suppress_tokens, np.int64)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self.length += len(tokens)
        for tally in (self._text, self._completion):
            if tally:
                tally.add(tokens)
        if self.matcher:
            self.matcher.extend(tokens)

    def apply(self, logits: torch.Tensor, path: Sequence[int] = ()) -> torch.Tensor:
        """Apply the options to the row of logits [vocab] that follows the path, and return the
        result. Options for tokens outside the model's vocabulary are ignored.
        """
        return self.rows(logits[None], (path,))[0]

    def rows(self, logits: torch.Tensor, paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """Apply the options to rows of logits [rows, vocab], and return the result. Each row
        follows its own path.
        """
        if not self._sampling.adjusting:
            return logits
        return adjust([logits], [self.adjustment(path, logits.shape[-1]) for path in paths])

    def adjustment(self, path: Sequence[int], vocabulary: int) -> Adjustment:
        """Return the changes that the options make to the row of logits that follows the path."""
        sampling, known = self._sampling, self._biased < vocabulary
        seen = self._text.of(path, vocabulary)[0] if self._text else NONE
        completion = self._completion
        counted, counts = completion.of(path, vocabulary) if completion else (NONE, NONE)
        barred, allowed = self._barred(path, vocabulary), None
        if self.matcher:
            allowed = self.matcher.allowed(path, vocabulary)
        if allowed is not None and allowed.any():
            others = allowed.copy()
            others[barred] = False
            barred = NONE
            if others.any():  # the grammar takes precedence over other options
                allowed = others
        else:
            allowed = None
        return Adjustment(
            biased=self._biased[known],
            biases=self._biases[known],
            seen=seen,
            repetition=sampling.repetition_penalty,
            counted=counted,
            counts=counts,
            presence=sampling.presence_penalty,
            frequency=sampling.frequency_penalty,
            barred=barred,
            allowed=allowed,
        )

    def _barred(self, path: Sequence[int], vocabulary: int) -> Ids:
        """Return the tokens that must not follow the path, whatever their logits."""
        completion = self.length + len(path) - self._sampling.prompt_length
        never = [self._suppressed]
        if completion < self._sampling.min_new_tokens:
            never.append(self._ends)
        if completion == 0:
            never.append(self._not_first)
        tokens = np.concatenate(never)
        return tokens[tokens < vocabulary]


def warp(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the log-probabilities of the distribution from which tokens are drawn, [rows,
    vocab].
    """
    warpers = LogitsProcessorList()
    if not sampling.greedy and sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(max(sampling.temperature, COLDEST)))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    # subtracts the maximum, because logits / temperature could otherwise become infinite
    logits = logits - logits.amax(-1, keepdim=True)
    no_ids = torch.LongTensor(logits.shape[0], 0)  # the warpers use only the scores
    return warpers(no_ids, logits).log_softmax(-1)


def probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the probabilities with which tokens are drawn from an adjusted row [vocab], as float64
    [vocab].
    """
    if sampling.greedy:
        certain = torch.zeros_like(logits, dtype=torch.float64)
        certain[logits.argmax()] = 1.0
        return certain
    return warp(logits.double()[None], sampling)[0].exp()


def draws(logits: torch.Tensor, sampling: SamplingParams, positions: Sequence[int]) -> list[int]:
    """Draw a token from each of the adjusted rows [rows, vocab], each at its own position."""
    seeds = [sampling.seed] * len(positions)
    return [int(each) for each in draw_rows(logits, sampling, seeds, positions).tolist()]


def draw_rows(
    logits: torch.Tensor, sampling: SamplingParams, seeds: Sequence[int], positions: Sequence[int]
) -> torch.Tensor:
    """Draw a token from each of the adjusted rows [rows, vocab], with the row's own seed and
    position. This is the reference implementation of a draw: it takes the token with the highest
    sum of log-probability and keyed noise. Of several tokens with the highest sum, the token with
    the lowest id is drawn. Returns int64 [rows] on the rows' device, without waiting for the
    device.
    """
    if sampling.greedy:
        return logits.argmax(-1)
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    parts = []
    for start in range(0, len(logits), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        noise = gumbel(seeds[part], positions[part], ids)  # [rows, vocab]
        parts.append((warp(logits[part], sampling) + noise).argmax(-1))
    return torch.cat(parts)
