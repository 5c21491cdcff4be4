"""The emitted tokens have the target's distribution, whatever is drafted and under every option."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch

from tandem.engine.sampling.sampler import LogitsProcessor
from tandem.protos import tree
from tandem.protos.types import Draft, Rule, SamplingParams
from tandem.verifier_service.acceptance import Decision, match, reject, walk
from tandem.verifier_service.target_sampler import TargetSampler
from tests.laws.world import (
    DRAFT,
    LENGTH,
    OPTIONS,
    PROMPT,
    TARGET,
    VOCABULARY,
    Script,
    Tokens,
    World,
    law_of,
    options,
)

FORK, BUSH = (-1, -1, 0, 1), (-1, -1, 0, 0)
WIDE_TREE = Draft((0, 3, 1, 2, 0), (-1, 0, 0, -1, -1))  # one token is twice a child of the root
DRAFTING: dict[str, Callable[[World, Tokens, Script], Draft]] = {
    "a sampled fork": lambda world, text, script: world.draft(text, FORK, script),
    "a sampled bush": lambda world, text, script: world.draft(text, BUSH, script),
    "a wide tree": lambda *_: WIDE_TREE,
    "the text again": lambda _, text, __: Draft.chain(text),
}


@options
@pytest.mark.parametrize("drafting", DRAFTING)
def test_rejection_emits_the_law_of_the_target(params: SamplingParams, drafting: str) -> None:
    """The drafts may or may not state the distribution that they were drawn from."""
    world, text = World(params), (2,)

    def emitted(script: Script) -> Tokens:
        draft = DRAFTING[drafting](world, text, script)

        def decide(node: int, children: Sequence[int]) -> Decision:
            path = tuple(draft.tokens[each] for each in tree.path(draft.parents, node))
            target = world.behind(text, path)
            return reject(draft, node, children, target, script.throw, script.draw)  # type: ignore[arg-type]

        accepted, token = walk(draft.parents, decide)
        return (*(draft.tokens[node] for node in accepted), token)

    world.assert_is_the_targets(law_of(emitted), text)


@pytest.mark.parametrize("knowing", [0, 1], ids=["ally", "adversary"])
def test_matched_drafts_emit_the_law_of_the_target_whatever_the_drafter_knows(knowing: int) -> None:
    """One drafter proposes exactly what the noise will draw, the other what it will not draw."""
    world = World(OPTIONS[1])

    def emitted(script: Script) -> Tokens:
        @cache
        def drawn(text: Tokens) -> int:
            return script.draw(world.alone(text))

        def step(text: Tokens) -> Tokens:
            draft = Draft.chain(((drawn(text) + knowing) % VOCABULARY,))
            accepted, token = walk(
                draft.parents,
                lambda node, children: match(
                    draft, children, drawn(text + draft.tokens[: node + 1])
                ),
            )
            return (*text, *(draft.tokens[node] for node in accepted), token)

        text: Tokens = ()
        while len(text) < LENGTH:
            text = step(text)
        return text[:LENGTH]

    world.assert_is_the_targets(law_of(emitted))


@options
def test_a_node_is_the_same_place_as_the_text_that_ends_there(params: SamplingParams) -> None:
    world = World(params)
    for text in (text for text in DRAFT if len(text) <= LENGTH):
        for cut in range(len(text) + 1):
            assert torch.equal(world.behind(text[:cut], text[cut:]), world.alone(text))


@pytest.mark.parametrize("rule", Rule)
def test_noise_is_that_of_a_nodes_own_place(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of another level or of another node is never used a second time."""
    params, text = SamplingParams(temperature=1.0, rule=rule), (2, 1)
    positions: list[int] = []

    def draw(row: torch.Tensor, params: SamplingParams, position: int) -> int:
        positions.append(position)
        return 0

    def noise(seed: int, position: int, *_: object) -> torch.Tensor:
        positions.append(position)
        return torch.ones(1)

    monkeypatch.setattr("tandem.verifier_service.target_sampler.draw", draw)
    monkeypatch.setattr("tandem.verifier_service.target_sampler.uniform", noise)
    monkeypatch.setattr("tandem.verifier_service.target_sampler.gumbel", noise)
    parents = WIDE_TREE.parents
    paths = [
        tuple(WIDE_TREE.tokens[each] for each in tree.path(parents, node))
        for node in range(-1, len(parents))
    ]
    logits = torch.stack([TARGET[text + path] for path in paths])
    judge = TargetSampler(WIDE_TREE, params, logits, LogitsProcessor(params, PROMPT + text))
    for node, path in enumerate(paths, start=-1):
        for children in ((), tree.children(parents)[node + 1]):
            judge.decide(node, children)
            assert positions or rule is Rule.TOP1
            assert set(positions) <= {len(PROMPT + text + path)}
            positions.clear()
