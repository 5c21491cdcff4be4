"""The law of the emitted tokens, enumerated: every draft, every outcome, on a table model."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from engine.sampling import warp
from protos import tree
from protos.types import SamplingParams
from verifier_service.acceptance import match

VOCABULARY = 5
LENGTH = 3

Tokens = tuple[int, ...]
Draft = tuple[Tokens, Tokens]
Drafting = Callable[[Tokens, "Noise"], Draft]
Noise = dict[
    Tokens, int
]  # the target's draw behind each prefix: what the noise has decided before anyone looks

SAMPLING = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=0.7, top_k=4, top_p=0.9),
]


def table(params: SamplingParams) -> dict[Tokens, list[float]]:
    """The target's distribution behind every prefix, float64."""
    generator = torch.Generator().manual_seed(7)
    prefixes = [p for n in range(LENGTH) for p in itertools.product(range(VOCABULARY), repeat=n)]
    logits = torch.randn(len(prefixes), VOCABULARY, generator=generator, dtype=torch.float64) * 2
    return dict(zip(prefixes, warp(logits, params).exp().tolist(), strict=True))


def outcomes(
    model: dict[Tokens, list[float]], prefix: Tokens = ()
) -> Iterator[tuple[Noise, float]]:
    """Every assignment of draws along the reachable text, with its probability."""
    if len(prefix) == LENGTH:
        yield {}, 1.0
        return
    for token, probability in enumerate(model[prefix]):
        if probability > 0:
            for rest, chance in outcomes(model, (*prefix, token)):
                yield {prefix: token} | rest, probability * chance


def chain_of_zeros(prefix: Tokens, noise: Noise) -> Draft:
    return (0, 0), (-1, 0)


def knows_the_noise(prefix: Tokens, noise: Noise) -> Draft:
    """A perfect drafter: it shares the noise and guesses every draw."""
    tokens: Tokens = ()
    while (*prefix, *tokens) in noise and len(tokens) < 2:
        tokens += (noise[(*prefix, *tokens)],)
    return tokens, tree.chain(len(tokens))


def contradicts_the_noise(prefix: Tokens, noise: Noise) -> Draft:
    """An adversary that shares the noise and always proposes something else."""
    return ((noise.get(prefix, 0) + 1) % VOCABULARY,), (-1,)


def wide_tree(prefix: Tokens, noise: Noise) -> Draft:
    """Two levels, three children of the root, some with children."""
    return (0, 3, 1, 2, 4, 0), (-1, 0, 0, -1, 3, -1)


def nothing(prefix: Tokens, noise: Noise) -> Draft:
    return (), ()


def drawn(noise: Noise, text: Tokens, tokens: Tokens, parents: Tokens, node: int) -> int:
    """What the target draws behind a node."""
    path: list[int] = []
    while node >= 0:
        path.append(tokens[node])
        node = parents[node]
    return noise.get((*text, *reversed(path)), 0)


def emitted(noise: Noise, drafting: Drafting) -> Tokens:
    """The text that rounds emit under one outcome of the noise."""
    text: Tokens = ()
    while len(text) < LENGTH:
        tokens, parents = drafting(text, noise)
        accepted, following = match(tokens, parents, partial(drawn, noise, text, tokens, parents))
        text = (*text, *(tokens[node] for node in accepted), following)
    return text[:LENGTH]


@pytest.mark.parametrize("params", SAMPLING, ids=str)
@pytest.mark.parametrize(
    "drafting",
    [chain_of_zeros, knows_the_noise, contradicts_the_noise, wide_tree, nothing],
    ids=lambda f: f.__name__,
)
def test_emitted_tokens_have_the_law_of_the_target_alone(
    params: SamplingParams, drafting: Drafting
) -> None:
    model = table(params)
    law: dict[Tokens, float] = defaultdict(float)
    for noise, probability in outcomes(model):
        law[emitted(noise, drafting)] += probability
    worst = 0.0
    for text in itertools.product(range(VOCABULARY), repeat=LENGTH):
        alone = 1.0
        for position, token in enumerate(text):
            alone *= model[text[:position]][token]
        worst = max(worst, abs(law[text] - alone))
    assert worst <= 1e-12


def test_the_walk_asks_the_target_only_where_it_goes() -> None:
    asked: list[int] = []

    def choice(node: int) -> int:
        asked.append(node)
        return {-1: 2, 3: 4, 4: 1}[node]

    assert match((0, 3, 1, 2, 4), (-1, 0, 0, -1, 3), choice) == ((3, 4), 1)
    assert asked == [-1, 3, 4]
