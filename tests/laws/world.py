"""A target and a drafter that are tables of logits, and the law of what rounds with them emit,
enumerated: every draft, every outcome.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from tandem.drafter_service.tree.expansion import sampled_children
from tandem.engine.sampling.sampler import LogitsProcessor, probabilities
from tandem.protos import tree
from tandem.protos.types import Distribution, Draft, SamplingParams
from tandem.verifier_service.acceptance import Decision, reject

VOCABULARY = 4
LENGTH = 3
PROMPT = (1, 3)

Tokens = tuple[int, ...]
Law = dict[Tokens, float]


def tables(seed: int) -> dict[Tokens, torch.Tensor]:
    """A model's logits behind every completion, float64."""
    generator = torch.Generator().manual_seed(seed)
    return {
        prefix: torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * 2
        for size in range(2 * LENGTH)
        for prefix in itertools.product(range(VOCABULARY), repeat=size)
    }


TARGET, DRAFT = tables(7), tables(8)


@dataclass
class World:
    """Target and drafter under some options."""

    params: SamplingParams
    known: dict[tuple[Tokens, Tokens], torch.Tensor] = field(default_factory=dict)
    drawn_from: dict[tuple[Tokens, Tokens], Distribution] = field(default_factory=dict)
    decided: dict[object, list[tuple[Decision, float]]] = field(default_factory=dict)

    def alone(self, completion: Tokens) -> torch.Tensor:
        """What the target draws from, decoding by itself."""
        return self.behind(completion, ())

    def behind(self, committed: Tokens, path: Tokens) -> torch.Tensor:
        """What it draws from behind a node: the node's own history counts."""
        if (committed, path) not in self.known:
            adjustment = LogitsProcessor(self.params, PROMPT + committed)
            row = adjustment.apply(TARGET[committed + path], path)
            self.known[committed, path] = probabilities(row, self.params)
        return self.known[committed, path]

    def drawn(self, committed: Tokens, path: Tokens) -> Distribution:
        """What the drafter draws from there."""
        if (committed, path) not in self.drawn_from:
            row = LogitsProcessor(self.params, PROMPT + committed).apply(
                DRAFT[committed + path], path
            )
            (guess,) = sampled_children(self.params, 1, 0)(row[None], [0])
            assert guess.drawn is not None
            self.drawn_from[committed, path] = guess.drawn
        return self.drawn_from[committed, path]

    def decisions(
        self, committed: Tokens, path: Tokens, draft: Draft, node: int, children: Sequence[int]
    ) -> list[tuple[Decision, float]]:
        """Every way that rejection may go at a node, and its probability."""
        question = committed, path, draft, node
        if question not in self.decided:
            target = self.behind(committed, path)
            coins = [Coins(fall) for fall in range(len(children) + 1)]
            ends = [reject(draft, node, children, target, c.throw, c.draw) for c in coins]  # type: ignore[arg-type]
            self.decided[question] = [
                way for coin, end in zip(coins, ends, strict=True) for way in coin.ways(end)
            ]
        return self.decided[question]

    def assert_law(self, round_law: Callable[[Tokens], Law]) -> None:
        """Rounds with this law emit texts with the target's."""
        found: Law = defaultdict(float)
        open_: Law = {(): 1.0}
        while open_:
            text, chance = open_.popitem()
            for tokens, share in round_law(text).items():
                longer = text + tokens
                if len(longer) >= LENGTH:
                    found[longer[:LENGTH]] += chance * share
                else:
                    open_[longer] = open_.get(longer, 0.0) + chance * share
        for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
            alone = 1.0
            for size, token in enumerate(text):
                alone *= float(self.alone(text[:size])[token])
            assert abs(found[text] - alone) <= 1e-12


@dataclass
class Coins:
    """Chance that is told what to do: so many children fall, and the next one stands."""

    fall: int
    share: float = 1.0  # the probability of what it was told
    thrown: int = 0
    left: list[float] = field(default_factory=list)

    def throw(self, token: int) -> Coins:
        """A number that has not been drawn yet."""
        return self

    def __lt__(self, chance: float) -> bool:
        """Whether a child with this chance stands."""
        stands = self.thrown == self.fall
        self.share *= chance if stands else 1 - chance
        self.thrown += 1
        return stands

    def draw(self, weights: torch.Tensor) -> int:
        """Any token: what they weigh is what counts."""
        self.left = weights.tolist()
        return 0

    def ways(self, end: Decision) -> Iterator[tuple[Decision, float]]:
        """How the decision may end, and how probable that is."""
        if not self.left:
            yield end, self.share
        for token, weight in enumerate(self.left):
            yield (None, token), self.share * weight / sum(self.left)


def draws(weights: Distribution, count: int) -> Iterator[tuple[Tokens, float]]:
    """Every sequence of tokens drawn without replacement, and its probability."""
    for tokens in itertools.permutations(weights.tokens, min(count, len(weights.tokens))):
        left, chance = dict(zip(weights.tokens, weights.weights, strict=True)), 1.0
        for token in tokens:
            chance *= left[token] / sum(left.values())
            del left[token]
        yield tokens, chance


def sampled_drafts(
    world: World, text: Tokens, parents: Sequence[int]
) -> Iterator[tuple[Draft, float]]:
    """Every draft of a shape that the drafter may draw; where there are fewer tokens than children,
    it is smaller.
    """
    children = tree.children(parents)

    def grow(node: int, drafted: dict[int, int]) -> Iterator[tuple[dict[int, int], float]]:
        if node == len(parents):
            yield drafted, 1.0
            return
        if node >= 0 and node not in drafted:
            yield from grow(node + 1, drafted)
            return
        path = tuple(drafted[each] for each in tree.path(parents, node))
        for tokens, chance in draws(world.drawn(text, path), len(children[node + 1])):
            longer = drafted | dict(zip(children[node + 1], tokens, strict=False))
            for done, rest in grow(node + 1, longer):
                yield done, chance * rest

    for drafted, chance in grow(-1, {}):
        places = {-1: -1} | {node: place for place, node in enumerate(sorted(drafted))}
        shape = tuple(places[parents[node]] for node in sorted(drafted))
        tokens = tuple(drafted[node] for node in sorted(drafted))
        paths = [
            tuple(drafted[each] for each in tree.path(parents, node))
            for node in (-1, *sorted(drafted))
        ]
        yield Draft(tokens, shape, tuple(world.drawn(text, p) for p in paths)), chance


def rejection_law(world: World, text: Tokens, draft: Draft) -> Law:
    """What a round with this draft emits."""
    children, law = tree.children(draft.parents), defaultdict[Tokens, float](float)

    def follow(node: int, emitted: Tokens, chance: float) -> None:
        decisions = world.decisions(text, emitted, draft, node, children[node + 1])
        for (child, token), share in decisions:
            if child is None:
                law[(*emitted, token)] += chance * share
            elif share > 0:
                follow(child, (*emitted, token), chance * share)

    follow(-1, (), 1.0)
    return law
