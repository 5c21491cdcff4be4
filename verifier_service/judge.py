"""What the target says of a draft: its draws, and the rule that decides at each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from engine import sampling
from engine.noise import Stream, gumbel, uniform
from engine.sampling import Adjustment
from protos import tree
from protos.types import Draft, Rule, SamplingParams, TokenLogprobs
from verifier_service.acceptance import Standing, match, reject, top1


@dataclass(frozen=True, slots=True)
class Judge:
    """What the target says of a draft: `logits` [1 + nodes, vocab] are those behind the root, then
    behind each node, and `adjustment` is of the committed tokens.
    """

    draft: Draft
    params: SamplingParams
    logits: torch.Tensor
    adjustment: Adjustment

    def decide(self, node: int, children: Sequence[int]) -> Standing:
        """Which child of a node is accepted, by the rule that was asked for."""
        path = [self.draft.tokens[each] for each in tree.path(self.draft.parents, node)]
        row = self.adjustment.apply(self.logits[node + 1], path)
        position = self.adjustment.length + len(path)
        if self.params.rule is Rule.REJECT:
            return self._reject(node, children, row, position)
        if self.params.rule is Rule.TOP1:
            drawn = partial(sampling.draw, row, self.params, position)
            return top1(self.draft, children, int(row.argmax()), drawn)
        return match(self.draft, children, sampling.draw(row, self.params, position))

    def logprobs(self, accepted: Sequence[int], token: int) -> tuple[TokenLogprobs, ...]:
        """Of the accepted tokens and the next one, if asked for."""
        count = self.params.logprobs
        if count is None:
            return ()
        tokens = (*(self.draft.tokens[node] for node in accepted), token)
        rows = (0, *(node + 1 for node in accepted))
        return tuple(
            sampling.logprobs(self.logits[row], token, count)
            for row, token in zip(rows, tokens, strict=True)
        )

    def _reject(
        self, node: int, children: Sequence[int], row: torch.Tensor, position: int
    ) -> Standing:
        seed, target = self.params.seed, sampling.probabilities(row, self.params)

        def chance(token: int) -> float:
            return float(uniform(seed, position, torch.tensor([token]), Stream.ACCEPT))

        def draw(weights: torch.Tensor) -> int:
            ids = torch.arange(len(weights), device=weights.device)
            return int((weights.log() + gumbel(seed, position, ids, Stream.RESIDUAL)).argmax())

        return reject(self.draft, node, children, target, chance, draw)
