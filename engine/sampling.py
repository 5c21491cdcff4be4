"""From logits to the next token: bias and penalise, warp, add keyed noise, take the maximum.

Every option is applied to a row of logits with the tokens before that row, so a node of a draft is
treated as the same place of a text would be. The order is that of transformers: bias, penalties,
barred tokens, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.noise import gumbel
from protos.types import SamplingParams, TokenLogprobs


class Adjustment:
    """What the options make of logits before anything is drawn, behind `tokens` and a path."""

    def __init__(self, sampling: SamplingParams, tokens: Sequence[int]) -> None:
        self.length = len(tokens)
        self._sampling = sampling
        self._tokens = torch.tensor(tokens) if sampling.repetition_penalty != 1 else None
        self._biased = torch.tensor([token for token, _ in sampling.logit_bias], dtype=torch.long)
        self._biases = torch.tensor([bias for _, bias in sampling.logit_bias])
        self._ends = torch.tensor(sampling.end_tokens, dtype=torch.long)
        completion = tokens[sampling.prompt_length :] if sampling.penalised else ()
        self._counts = Counter(completion)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        self.length += len(tokens)
        if self._tokens is not None:
            self._tokens = torch.cat([self._tokens, torch.tensor(tokens)])
        if self._sampling.penalised:
            self._counts.update(tokens)

    def apply(self, logits: torch.Tensor, path: Sequence[int] = ()) -> torch.Tensor:
        """The row [vocab] as the options want it behind the path. What they say of tokens that this
        model lacks is nothing.
        """
        sampling = self._sampling
        if not (sampling.historic or sampling.logit_bias):
            return logits
        logits, known = logits.clone(), self._biased < len(logits)
        logits[self._biased[known]] += self._biases[known].to(logits)
        logits = self._penalised(logits, path)
        completion = self.length + len(path) - sampling.prompt_length
        if completion < sampling.min_new_tokens:
            logits[self._ends[self._ends < len(logits)]] = -torch.inf
        return logits

    def rows(self, logits: torch.Tensor, paths: Sequence[Sequence[int]]) -> torch.Tensor:
        """The same for rows [rows, vocab], each behind a path of its own."""
        if not (self._sampling.historic or self._sampling.logit_bias):
            return logits
        return torch.stack([self.apply(*each) for each in zip(logits, paths, strict=True)])

    def _penalised(self, logits: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        sampling = self._sampling
        if self._tokens is not None:
            seen = torch.cat([self._tokens, torch.tensor(path, dtype=torch.long)])
            seen = seen[seen < len(logits)].to(logits.device)
            penalise = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
            logits = penalise(seen[None], logits[None])[0]
        if sampling.presence_penalty or sampling.frequency_penalty:
            both = self._counts + Counter(path)
            counts = {token: count for token, count in both.items() if token < len(logits)}
            ids = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
            times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
            logits[ids] -= times * sampling.frequency_penalty + sampling.presence_penalty
        return logits


def warp(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Log-probabilities of the distribution to draw from, [rows, vocab]."""
    warpers = LogitsProcessorList()
    if not sampling.greedy and sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    logits = logits - logits.amax(-1, keepdim=True)  # else a tiny temperature would make infinities
    no_ids = torch.LongTensor(logits.shape[0], 0)  # these warpers look at the scores alone
    return warpers(no_ids, logits).log_softmax(-1)


def probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """The distribution to draw from, [vocab] float64, of adjusted logits."""
    if sampling.greedy:
        certain = torch.zeros_like(logits, dtype=torch.float64)
        certain[logits.argmax()] = 1.0
        return certain
    return warp(logits[None].double(), sampling)[0].exp()


def draw(logits: torch.Tensor, sampling: SamplingParams, position: int) -> int:
    """The target's own choice for a position from its adjusted logits, [vocab]; ties go to the
    lowest id.
    """
    if sampling.greedy:
        return int(logits.argmax())
    scores = warp(logits[None], sampling)[0]
    ids = torch.arange(scores.shape[0], dtype=torch.int32, device=scores.device)
    return int((scores + gumbel(sampling.seed, position, ids)).argmax())


def logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """The model's own log-probabilities, before any option, from logits as they are, [vocab]."""
    scores = logits.log_softmax(-1)
    top = scores.topk(count)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return TokenLogprobs(float(scores[token]), tuple(pairs))
