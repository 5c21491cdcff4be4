"""A target and a drafter that are tables of logits, and scripted chance: together they enumerate
the distribution of the emitted tokens over every draft and every outcome.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import pytest
import torch

from tandem.drafter_service.tree.expansion import sampled_children
from tandem.engine.sampling.sampler import LogitsProcessor, probabilities
from tandem.protos import tree
from tandem.protos.types import Distribution, Draft, SamplingParams

VOCABULARY = 4
LENGTH = 3
PROMPT = (1, 3)

Tokens = tuple[int, ...]
Law = dict[Tokens, float]


def tables(seed: int) -> dict[Tokens, torch.Tensor]:
    """Return a model's logits after every completion, float64."""
    generator = torch.Generator().manual_seed(seed)
    return {
        prefix: torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * 2
        for size in range(LENGTH + 2)
        for prefix in itertools.product(range(VOCABULARY), repeat=size)
    }


TARGET, DRAFT = tables(7), tables(8)
OPTIONS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.0, repetition_penalty=1.5, logit_bias=((0, 1.5), (2, -3.0))),
    SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=-0.6, prompt_length=2),
    SamplingParams(temperature=1.0, min_new_tokens=2, end_tokens=(1, 2), prompt_length=2),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, prompt_length=2),
]
options = pytest.mark.parametrize("params", OPTIONS, ids=range(len(OPTIONS)))


class Script:
    """Scripted chance: it returns the outcomes that it is told, and then the first one of each
    draw.
    """

    def __init__(self, told: Sequence[int]) -> None:
        self.taken: list[int] = []
        self.weights: list[list[float]] = []
        self._told = told

    def choose(self, weights: Sequence[float]) -> int:
        """Return an index, whose probability is its weight's share."""
        step = len(self.taken)
        possible = [index for index, weight in enumerate(weights) if weight > 0]
        self.taken.append(self._told[step] if step < len(self._told) else possible[0])
        self.weights.append(list(weights))
        return self.taken[-1]

    def draw(self, weights: torch.Tensor) -> int:
        """Do the same for a tensor."""
        return self.choose(weights.tolist())

    def throw(self, *_: object) -> Coin:
        """Return a number between 0 and 1."""
        return Coin(self.choose)

    @property
    def probability(self) -> float:
        """Return the probability of all outcomes that were taken."""
        pairs = zip(self.taken, self.weights, strict=True)
        return prod(weights[index] / sum(weights) for index, weights in pairs)

    def following(self) -> list[int] | None:
        """Return the script of the next run, or None if this run was the last."""
        for step in reversed(range(len(self.taken))):
            for index in range(self.taken[step] + 1, len(self.weights[step])):
                if self.weights[step][index] > 0:
                    return [*self.taken[:step], index]
        return None


@dataclass(frozen=True)
class Coin:
    """A number that is undetermined until it is compared."""

    choose: Callable[[Sequence[float]], int]

    def __lt__(self, chance: float) -> bool:
        return self.choose([chance, 1 - chance]) == 0


def law_of(run: Callable[[Script], Tokens]) -> Law:
    """Return the probability of everything that a run may emit."""
    law: Law = defaultdict(float)
    told: list[int] | None = []
    while told is not None:
        script = Script(told)
        law[run(script)] += script.probability
        told = script.following()
    return law


@dataclass
class World:
    """A target and a drafter under some options."""

    params: SamplingParams
    known: dict[tuple[Tokens, Tokens], torch.Tensor] = field(default_factory=dict)
    drawn_from: dict[tuple[Tokens, Tokens], Distribution] = field(default_factory=dict)

    def alone(self, completion: Tokens) -> torch.Tensor:
        """Return the distribution that the target draws from without drafts."""
        return self.behind(completion, ())

    def behind(self, committed: Tokens, path: Tokens) -> torch.Tensor:
        """Return the distribution that the target draws from at a node, whose own path counts as
        text.
        """
        if (committed, path) not in self.known:
            adjustment = LogitsProcessor(self.params, PROMPT + committed)
            row = adjustment.apply(TARGET[committed + path], path)
            self.known[committed, path] = probabilities(row, self.params)
        return self.known[committed, path]

    def drawn(self, committed: Tokens, path: Tokens) -> Distribution:
        """Return the distribution that the drafter draws from at a node."""
        if (committed, path) not in self.drawn_from:
            row = LogitsProcessor(self.params, PROMPT + committed).apply(
                DRAFT[committed + path], path
            )
            (proposal,) = sampled_children(self.params, 1, 0)(row[None], [0])
            assert proposal.drawn is not None
            self.drawn_from[committed, path] = proposal.drawn
        return self.drawn_from[committed, path]

    def draft(self, text: Tokens, parents: Sequence[int], script: Script) -> Draft:
        """Return a draft as the drafter draws it, siblings without replacement; it is smaller where
        there are fewer tokens than children.
        """
        children, drawn = tree.children(parents), list[Distribution]()
        tokens, places = list[int](), list[int]()
        grown = deque[tuple[int, int, Tokens]]([(-1, -1, ())])  # nodes, their places and paths
        while grown:
            node, place, path = grown.popleft()
            drawn.append(self.drawn(text, path))
            left = dict(zip(drawn[-1].tokens, drawn[-1].weights, strict=True))
            for child in children[node + 1][: len(left)]:
                token = list(left)[script.choose(list(left.values()))]
                del left[token]
                grown.append((child, len(tokens), (*path, token)))
                tokens.append(token)
                places.append(place)
        return Draft(tuple(tokens), tuple(places), tuple(drawn))

    def chance(self, text: Tokens, tokens: Tokens) -> float:
        """Return the probability that the target by itself continues with these tokens."""
        rows = [self.alone(text + tokens[:size]) for size in range(len(tokens))]
        return prod(float(row[token]) for row, token in zip(rows, tokens, strict=True))

    def assert_is_the_targets(self, law: Law, text: Tokens = ()) -> None:
        """Check that an emitted text, continued by the target alone, is as probable as if the
        target had written all of it. By induction, any number of such rounds has the target's
        distribution.
        """
        for whole in itertools.product(range(VOCABULARY), repeat=LENGTH):
            found = sum(
                share * self.chance(text + emitted, whole[len(emitted) :])
                for emitted, share in law.items()
                if whole[: len(emitted)] == emitted
            )
            assert abs(found - self.chance(text, whole)) <= 1e-12
