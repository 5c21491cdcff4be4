"""The law of the emitted tokens is the target's, whatever is drafted, under every option."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from tandem.engine.sampling.sampler import LogitsProcessor, probabilities
from tandem.protos import tree
from tandem.protos.types import Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import Decision, match, top1, walk
from tandem.verifier_service.target_sampler import TargetSampler
from tests.laws.world import (
    DRAFT,
    LENGTH,
    PROMPT,
    TARGET,
    VOCABULARY,
    Law,
    Tokens,
    World,
    rejection_law,
    sampled_drafts,
)

SAMPLING = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=1.0, repetition_penalty=1.5, prompt_length=2),
    SamplingParams(temperature=0.9, presence_penalty=0.8, frequency_penalty=-0.6, prompt_length=2),
    SamplingParams(temperature=1.0, logit_bias=((0, 1.5), (2, -3.0))),
    SamplingParams(temperature=1.0, min_new_tokens=2, end_tokens=(1, 2), prompt_length=2),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, prompt_length=2),
]


def name(params: SamplingParams) -> str:
    """The options that are on."""
    return ",".join(
        f"{each.name}={getattr(params, each.name)}"
        for each in fields(params)
        if getattr(params, each.name) != each.default
    )


CHAIN, FORK, BUSH = (-1, 0), (-1, -1, 0, 1), (-1, -1, 0, 0)


@pytest.mark.parametrize("params", SAMPLING, ids=name)
@pytest.mark.parametrize("parents", [CHAIN, FORK, BUSH], ids=["chain", "fork", "bush"])
def test_rejection_of_sampled_drafts_emits_the_law_of_the_target(
    params: SamplingParams, parents: Tokens
) -> None:
    world = World(params)

    def law(text: Tokens) -> Law:
        total: Law = defaultdict(float)
        for draft, chance in sampled_drafts(world, text, parents):
            for tokens, share in rejection_law(world, text, draft).items():
                total[tokens] += chance * share
        return total

    world.assert_law(law)


def nothing(text: Tokens) -> Draft:
    return Draft()


def chain_of_zeros(text: Tokens) -> Draft:
    return Draft.chain((0, 0))


def wide_tree(text: Tokens) -> Draft:
    """Two levels, three children of the root, one of them twice, some with children."""
    return Draft((0, 3, 1, 2, 0), (-1, 0, 0, -1, -1))


def follows_the_text(text: Tokens) -> Draft:
    return Draft.chain(tuple(reversed(text)) or (2,))


FIXED = [nothing, chain_of_zeros, wide_tree, follows_the_text]


@pytest.mark.parametrize("params", SAMPLING, ids=name)
@pytest.mark.parametrize("drafting", FIXED, ids=lambda f: f.__name__)
def test_rejection_of_drafts_that_say_nothing_emits_the_law_of_the_target(
    params: SamplingParams, drafting: Callable[[Tokens], Draft]
) -> None:
    world = World(params)
    world.assert_law(lambda text: rejection_law(world, text, drafting(text)))


@pytest.mark.parametrize("params", SAMPLING, ids=name)
@pytest.mark.parametrize("knowing", [None, 0, 1], ids=["ignorant", "ally", "adversary"])
@pytest.mark.parametrize("drafting", FIXED, ids=lambda f: f.__name__)
def test_matched_drafts_emit_the_law_of_the_target(
    params: SamplingParams, drafting: Callable[[Tokens], Draft], knowing: int | None
) -> None:
    """Even if the drafter knows the noise: the ally proposes what will be drawn, the adversary what
    will not.
    """
    world = World(params)
    law: Law = defaultdict(float)
    for noise, chance in outcomes(world, ()):
        text: Tokens = ()
        while len(text) < LENGTH:
            draft = drafting(text)
            if knowing is not None:
                draft = Draft.chain(((noise[text] + knowing) % VOCABULARY,))
            accepted, token = walk(draft.parents, Matching(noise, text, draft).decide)
            text = (*text, *(draft.tokens[node] for node in accepted), token)
        law[text[:LENGTH]] += chance
    world.assert_law(lambda text: law if not text else {})


def outcomes(world: World, prefix: Tokens) -> Iterator[tuple[dict[Tokens, int], float]]:
    """Every assignment of draws along the reachable text, with its probability."""
    if len(prefix) == LENGTH:
        yield {}, 1.0
        return
    for token, probability in enumerate(world.alone(prefix).tolist()):
        if probability > 0:
            for rest, chance in outcomes(world, (*prefix, token)):
                yield {prefix: token} | rest, probability * chance


@dataclass
class Matching:
    """The walk where the noise has decided every draw before anyone looks."""

    noise: dict[Tokens, int]
    text: Tokens
    draft: Draft

    def decide(self, node: int, children: Sequence[int]) -> Decision:
        path = (self.draft.tokens[each] for each in tree.path(self.draft.parents, node))
        return match(self.draft, children, self.noise.get((*self.text, *path), 0))


@pytest.mark.parametrize("params", SAMPLING, ids=name)
def test_a_node_is_the_same_place_as_the_text_that_ends_there(params: SamplingParams) -> None:
    world = World(params)
    for text in DRAFT:
        for cut in range(len(text) + 1):
            assert torch.equal(world.behind(text[:cut], text[cut:]), world.alone(text))


@pytest.mark.parametrize("params", SAMPLING, ids=name)
@pytest.mark.parametrize("rule", list(Rule), ids=lambda rule: rule.name)
def test_a_rule_is_given_the_targets_distribution_behind_each_node(
    params: SamplingParams, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And noise of the node's own place: that of no other level is used again."""
    world, params = World(params), replace(params, rule=rule)
    targets: list[torch.Tensor] = []
    positions: list[int] = []

    def draw(row: torch.Tensor, params: SamplingParams, position: int) -> int:
        targets.append(probabilities(row, params))
        positions.append(position)
        return 0

    def uniform(seed: int, position: int, *_: object) -> torch.Tensor:
        positions.append(position)
        return torch.zeros(1)

    def reject(*given: Any) -> Decision:
        targets.append(given[3])
        given[4](0)
        return None, 0

    def top1(draft: Draft, nodes: Sequence[int], likeliest: int, draw: Callable[[], int]) -> Any:
        token = draw()
        assert likeliest == int(targets[-1].argmax())
        return None, token

    monkeypatch.setattr("tandem.verifier_service.target_sampler.sampling.draw", draw)
    monkeypatch.setattr("tandem.verifier_service.target_sampler.uniform", uniform)
    monkeypatch.setattr("tandem.verifier_service.target_sampler.reject", reject)
    monkeypatch.setattr("tandem.verifier_service.target_sampler.top1", top1)
    for text in [(), (2,), (1, 0)]:
        draft = wide_tree(text)
        paths = [
            tuple(draft.tokens[each] for each in tree.path(draft.parents, node))
            for node in range(-1, len(draft))
        ]
        logits = torch.stack([TARGET[text + path] for path in paths])
        judge = TargetSampler(draft, params, logits, LogitsProcessor(params, PROMPT + text))
        for node, path in enumerate(paths, start=-1):
            judge.decide(node, ())
            assert torch.equal(targets.pop(), world.behind(text, path))
            assert positions.pop() == len(PROMPT + text + path)
    assert not targets and not positions


def test_top1_takes_the_likeliest_tokens_and_draws_where_they_end() -> None:
    draft = Draft((2, 3, 1), (-1, -1, 1))
    likeliest = {-1: 3, 1: 1, 2: 0}
    decided = walk(draft.parents, lambda n, c: top1(draft, c, likeliest[n], lambda: 2))
    assert decided == ((1, 2), 2)
    wrong = walk(draft.parents, lambda n, c: top1(draft, c, 0, lambda: 2))
    assert wrong == ((), 2), "a drawn token ends the round even if a child has it"


def test_the_walk_asks_the_target_only_where_it_goes() -> None:
    asked: list[int] = []
    draft = Draft((0, 3, 1, 2, 4), (-1, 0, 0, -1, 3))

    def decide(node: int, children: Sequence[int]) -> Decision:
        asked.append(node)
        return match(draft, children, {-1: 2, 3: 4, 4: 1}[node])

    assert walk(draft.parents, decide) == ((3, 4), 1)
    assert asked == [-1, 3, 4]
