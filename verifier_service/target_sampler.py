"""What the target draws after each node of a draft, and the rule that decides there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from tandem.engine.sampling import sampler as sampling
from tandem.engine.sampling.noise import NoiseStream, gumbel, uniform
from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos import tree
from tandem.protos.types import Draft, Rule, SamplingParams, TokenLogprobs
from tandem.verifier_service.acceptance import Decision, match, reject, top1


@dataclass(slots=True)
class NodeSample:
    """What may be asked about one node, or the root: what is drawn after it, the likeliest token,
    whether the logits are not numbers, and how likely the model finds either token.
    """

    drawn: int
    likeliest: int
    overflowed: bool
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


@dataclass(slots=True)
class TargetSampler:
    """The target's draws along a draft: `logits` [1 + nodes, vocab] are those after the root, then
    after each node, and `adjustment` is of the committed tokens.

    A processor draws where the walk comes by. A device has `samples` after all nodes before the
    walk begins (`batched_sampling`).
    """

    draft: Draft
    params: SamplingParams
    logits: torch.Tensor
    adjustment: LogitsProcessor
    samples: Sequence[NodeSample] = ()

    @property
    def overflowed(self) -> bool:
        """Whether any logits are not numbers."""
        if self.samples:
            return any(sample.overflowed for sample in self.samples)
        return bool(self.logits.amax().isnan())  # a maximum is NaN if anything is

    def decide(self, node: int, children: Sequence[int]) -> Decision:
        """Which child of a node is accepted, by the rule that was asked for."""
        if self.samples:
            sample = self.samples[node + 1]
            if self.params.rule is Rule.TOP1:
                return top1(self.draft, children, sample.likeliest, lambda: sample.drawn)
            return match(self.draft, children, sample.drawn)
        path = self._path(node)
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
        pairs = zip(rows, tokens, strict=True)
        if self.samples:
            return tuple(self.samples[row].logprobs[token] for row, token in pairs)
        return tuple(sampling.logprobs(self.logits[row], token, count) for row, token in pairs)

    def rows(self) -> torch.Tensor:
        """The logits as the options want them, [1 + nodes, vocab]."""
        return self.adjustment.rows(self.logits, self._paths())

    def positions(self) -> list[int]:
        """Of what follows the root and each node."""
        return [self.adjustment.length + len(path) for path in self._paths()]

    def _paths(self) -> list[list[int]]:
        return [self._path(node) for node in range(-1, len(self.draft))]

    def _path(self, node: int) -> list[int]:
        """The tokens from after the root down to a node."""
        return [self.draft.tokens[each] for each in tree.path(self.draft.parents, node)]

    def _reject(
        self, node: int, children: Sequence[int], row: torch.Tensor, position: int
    ) -> Decision:
        seed, target = self.params.seed, sampling.probabilities(row, self.params)

        def chance(token: int) -> float:
            return float(uniform(seed, position, torch.tensor([token]), NoiseStream.ACCEPT))

        def draw(weights: torch.Tensor) -> int:
            ids = torch.arange(len(weights), device=weights.device)
            return int((weights.log() + gumbel(seed, position, ids, NoiseStream.RESIDUAL)).argmax())

        return reject(self.draft, node, children, target, chance, draw)
