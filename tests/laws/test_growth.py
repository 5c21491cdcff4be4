"""The grown tree is the best-first tree: what expanding everything and taking the best gives."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from drafter_service.growth import ROOT, Child, Growth
from protos import tree
from protos.types import Draft, DraftShape

PLENTY = 10_000
Path = tuple[int, ...]
Children = list[Child]


@dataclass(frozen=True)
class World:
    """A drafter's guesses: log-probabilities of seven tokens behind every path, no two alike."""

    seed: int

    def children(self, path: Path) -> Children:
        """All tokens, likeliest first."""
        noise = random.Random(f"{self.seed} {path}")
        gains = sorted((-noise.expovariate(1.0) - 0.01 for _ in range(7)), reverse=True)
        tokens = noise.sample(range(7), 7)
        return [Child(*each) for each in zip(tokens, gains, strict=True)]


worlds = st.builds(World, st.integers(0, 1 << 30))
shapes = st.builds(
    DraftShape, levels=st.integers(1, 5), branches=st.integers(1, 4), nodes=st.integers(1, 20)
)


def grow(
    shape: DraftShape, children: Callable[[Path], Children], room: int = PLENTY
) -> tuple[Growth, list[Path]]:
    """A finished growth, and the path of every fed node in the order of its place."""
    growth = Growth(shape, room)
    growth.sprout(ROOT, children(()))
    fed: list[Path] = []
    while frontier := growth.frontier():
        for node in frontier:
            path: Path = ()
            at = node
            while at != ROOT:
                path, at = (growth.nodes[at].token, *path), growth.nodes[at].parent
            fed.append(path)
            growth.sprout(node, children(path))
    return growth, fed


def paths(draft: Draft) -> list[Path]:
    """The tokens from the root to every node, in the order of the nodes."""
    found: list[Path] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def best_paths(shape: DraftShape, world: World) -> dict[Path, float]:
    """Expand everything down to the last level; keep the best."""
    scores: dict[Path, float] = {}
    level: dict[Path, float] = {(): 0.0}
    for _ in range(shape.levels):
        level = {
            (*path, token): score + gain
            for path, score in level.items()
            for token, gain, _ in world.children(path)[: shape.branches]
        }
        scores |= level
    kept = sorted(scores, key=lambda path: -scores[path])[: shape.nodes]
    return {path: scores[path] for path in kept}


@given(worlds, shapes)
def test_the_tree_has_exactly_the_best_paths_of_all(world: World, shape: DraftShape) -> None:
    growth, _ = grow(shape, world.children)
    draft, _ = growth.finish()
    assert sorted(paths(draft)) == sorted(best_paths(shape, world))


@given(worlds, shapes)
def test_the_tree_comes_in_preorder_with_the_likeliest_child_first(
    world: World, shape: DraftShape
) -> None:
    draft, _ = grow(shape, world.children)[0].finish()
    scores = best_paths(shape, world)

    def preorder(path: Path) -> list[Path]:
        children = sorted((p for p in scores if p[:-1] == path), key=lambda p: -scores[p])
        return [step for child in children for step in (child, *preorder(child))]

    assert tree.problem(draft.parents) is None
    assert paths(draft) == preorder(())


@given(worlds, shapes)
def test_the_trunk_says_where_the_leading_nodes_were_fed(world: World, shape: DraftShape) -> None:
    growth, fed = grow(shape, world.children)
    draft, trunk = growth.finish()
    leading = paths(draft)[: tree.trunk(draft.parents)]
    expected = [fed.index(path) for path in leading if path in fed]
    assert list(trunk) == expected
    assert expected == [fed.index(path) for path in leading[: len(expected)]], (
        "only the first of them are held"
    )


@given(worlds, shapes)
def test_what_was_fed_is_a_tree_in_the_order_of_its_places(world: World, shape: DraftShape) -> None:
    growth, fed = grow(shape, world.children)
    parents = growth.fed_parents()
    assert tree.problem(parents) is None
    assert [fed[parent] if parent >= 0 else () for parent in parents] == [path[:-1] for path in fed]
    assert [growth.nodes[node].place for node in growth.fed] == list(range(len(fed)))


@given(worlds, shapes, st.integers(0, 6))
def test_no_more_is_fed_than_there_is_room_for(world: World, shape: DraftShape, room: int) -> None:
    growth, fed = grow(shape, world.children, room)
    draft, trunk = growth.finish()
    assert len(fed) <= room
    assert len(draft) <= shape.nodes
    assert all(place < len(fed) for place in trunk)


@given(worlds, st.integers(1, 8))
def test_one_branch_gives_the_greedy_chain_and_feeds_all_but_its_last_token(
    world: World, levels: int
) -> None:
    growth, fed = grow(DraftShape.chain(levels), world.children)
    draft, trunk = growth.finish()
    greedy: Path = ()
    for _ in range(levels):
        greedy = (*greedy, world.children(greedy)[0][0])
    assert draft == Draft.chain(greedy)
    assert trunk == tuple(range(levels - 1)) and len(fed) == levels - 1


def rows(*gains: float) -> Children:
    """Children 1, 2, ... with these log-probabilities."""
    return [Child(token, gain) for token, gain in enumerate(gains, 1)]


def test_a_sure_drafter_spends_its_budget_on_depth_and_an_unsure_one_on_width() -> None:
    sure, _ = grow(DraftShape(5, 3, 5), lambda path: rows(-0.01, -5.0, -5.0))[0].finish()
    unsure, _ = grow(DraftShape(5, 3, 3), lambda path: rows(-1.0, -1.1, -1.2))[0].finish()
    assert sure == Draft.chain((1, 1, 1, 1, 1))
    assert unsure == Draft((1, 2, 3), (-1, -1, -1))


def test_among_equals_no_child_precedes_its_parent() -> None:
    draft, _ = grow(DraftShape(4, 3, 3), lambda path: rows(0.0, 0.0, 0.0))[0].finish()
    assert sorted(paths(draft)) == [(1,), (2,), (3,)]


def test_a_child_never_scores_above_its_parent_whatever_rounding_says() -> None:
    growth = Growth(DraftShape(2, 1, 2), PLENTY)
    growth.sprout(ROOT, [Child(1, -1.0)])
    assert growth.frontier() == [0]
    growth.sprout(0, [Child(2, 1e-7)])
    assert growth.nodes[1].score == growth.nodes[0].score


def test_no_budget_gives_no_draft() -> None:
    growth, fed = grow(DraftShape(3, 2, 0), World(1).children)
    assert growth.finish() == (Draft(), ())
    assert fed == []


def test_no_levels_give_no_draft() -> None:
    """`DraftShape` promises at most `nodes` nodes on `levels` levels, and the schema that 0 levels
    are nothing.
    """
    draft, _ = grow(DraftShape(0, 2, 4), World(1).children)[0].finish()
    assert draft == Draft()


def test_nothing_is_drafted_behind_a_token_that_the_drafter_does_not_trust() -> None:
    """The doubtful token itself is proposed, as in transformers' assisted generation."""

    def doubtful(path: Path) -> Children:
        return [Child(1, -0.1, 0.9 if len(path) < 2 else 0.3)]

    shape = replace(DraftShape.chain(6), confidence=0.4)
    assert grow(shape, doubtful)[0].finish()[0] == Draft.chain((1, 1, 1))


@given(worlds, shapes, st.floats(0.01, 0.9))
def test_only_nodes_that_are_worth_it_are_proposed(
    world: World, shape: DraftShape, worth: float
) -> None:
    everything = dict(best_paths(shape, world))
    draft, _ = grow(replace(shape, worth=worth), world.children)[0].finish()
    wanted = {path for path, score in everything.items() if score > math.log(worth)}
    assert set(paths(draft)) == wanted


def test_a_level_that_promises_too_little_is_not_looked_at() -> None:
    def halves(path: Path) -> Children:
        return rows(math.log(0.5))

    promised = [0.25, 0.125, 0.0625]  # of the levels behind the first
    for levels, least in enumerate(promised, 1):
        shape = replace(DraftShape.chain(8), level_worth=least * 1.01)
        assert len(grow(shape, halves)[0].finish()[0]) == levels


@given(worlds, shapes)
def test_the_expected_number_is_the_sum_of_the_chances(world: World, shape: DraftShape) -> None:
    growth, _ = grow(shape, world.children)
    chances = sum(math.exp(score) for score in best_paths(shape, world).values())
    assert math.isclose(growth.expected, chances)
