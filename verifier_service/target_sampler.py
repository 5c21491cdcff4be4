"""Samples the target's tokens after the nodes of a draft, and applies the rule that decides which
nodes are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tandem.engine.sampling.adjustment import Adjustment
from tandem.engine.sampling.drawing import draw
from tandem.engine.sampling.likeliest import logprobs
from tandem.engine.sampling.noise import NoiseStream, gumbel, uniform
from tandem.engine.sampling.sampler import LogitsProcessor, probabilities
from tandem.protos import tree
from tandem.protos.types import Draft, Rule, SamplingParams, TokenLogprobs
from tandem.verifier_service.acceptance import Decision, match, reject, top1


@dataclass(slots=True)
class NodeSample:
    """The target's sample after the root or a node: the token drawn, the likeliest token, whether
    any logit is not a number, and the log-probabilities of both tokens, if requested.
    """

    drawn: int
    likeliest: int
    overflowed: bool
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


@dataclass(slots=True)
class TargetSampler:
    """Samples the target's tokens along a draft. `logits` [1 + nodes, vocab] are the logits after
    the root and after each node. `adjustment` applies the sampling options to the logits, given the
    committed tokens.

    Most samplers get all `samples`, after the root and after each node, before the acceptance walk
    begins (`batched_sampling`). Samplers without `samples` draw during the walk, and only after the
    nodes that the walk reaches.
    """

    draft: Draft
    params: SamplingParams
    logits: torch.Tensor
    adjustment: LogitsProcessor
    samples: Sequence[NodeSample] = ()

    @property
    def overflowed(self) -> bool:
        """Whether any logit is not a number."""
        if self.samples:
            return any(sample.overflowed for sample in self.samples)
        return bool(self.logits.amax().isnan())  # the maximum is NaN if any logit is NaN

    def decide(self, node: int, children: Sequence[int]) -> Decision:
        """Decide which child of a node is accepted, by the requested rule."""
        if self.params.rule is Rule.REJECT:
            return self._reject(node, children)
        sample = self.samples[node + 1] if self.samples else self._sample(node)
        if self.params.rule is Rule.TOP1:
            return top1(self.draft, children, sample.likeliest, lambda: sample.drawn)
        return match(self.draft, children, sample.drawn)

    def logprobs(self, accepted: Sequence[int], token: int) -> tuple[TokenLogprobs, ...]:
        """Return the log-probabilities of the accepted tokens and of the token after them, if
        requested.
        """
        count = self.params.logprobs
        if count is None:
            return ()
        tokens = (*(self.draft.tokens[node] for node in accepted), token)
        rows = (0, *(node + 1 for node in accepted))
        pairs = zip(rows, tokens, strict=True)
        if self.samples and self.samples[0].logprobs:
            return tuple(self.samples[row].logprobs[token] for row, token in pairs)
        return tuple(logprobs(self.logits[row], token, count) for row, token in pairs)

    def adjustments(self) -> list[Adjustment]:
        """Return the adjustments that the sampling options make to the logits after the root and
        after each node.
        """
        vocabulary = self.logits.shape[-1]
        return [self.adjustment.adjustment(path, vocabulary) for path in self._paths()]

    def positions(self) -> list[int]:
        """Return the positions of the tokens that follow the root and each of the nodes."""
        return [self.adjustment.length + len(path) for path in self._paths()]

    def _paths(self) -> list[list[int]]:
        return [self._path(node) for node in range(-1, len(self.draft))]

    def _path(self, node: int) -> list[int]:
        """Return the tokens on the path from the root, exclusively, down to a node."""
        return [self.draft.tokens[each] for each in tree.path(self.draft.parents, node)]

    def _adjusted(self, node: int) -> tuple[torch.Tensor, int]:
        """Return the logits after a node, adjusted by the sampling options, and the position of the
        token that follows the node.
        """
        path = self._path(node)
        row = self.adjustment.apply(self.logits[node + 1], path)
        return row, self.adjustment.length + len(path)

    def _sample(self, node: int) -> NodeSample:
        row, position = self._adjusted(node)
        drawn = draw(row, self.params, position)
        likeliest = int(row.argmax()) if self.params.rule is Rule.TOP1 else drawn
        return NodeSample(drawn, likeliest, overflowed=False)

    def _reject(self, node: int, children: Sequence[int]) -> Decision:
        row, position = self._adjusted(node)
        seed, target = self.params.seed, probabilities(row, self.params)

        def chance(token: int) -> float:
            return float(uniform(seed, position, torch.tensor([token]), NoiseStream.ACCEPT))

        def draw(weights: torch.Tensor) -> int:
            ids = torch.arange(len(weights), device=weights.device)
            return int((weights.log() + gumbel(seed, position, ids, NoiseStream.RESIDUAL)).argmax())

        return reject(self.draft, node, children, target, chance, draw)
