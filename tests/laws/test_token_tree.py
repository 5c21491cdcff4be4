"""The grown tree is the best-first tree: the same as expanding everything and keeping the best
nodes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from tandem.drafter_service.tree.node import Child, DraftNode, Expansion
from tandem.drafter_service.tree.token_tree import FED_PER_NODE, TokenTree
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory, Worth
from tandem.engine.schedule.batch import StepCosts
from tandem.protos import tree
from tandem.protos.types import Draft, DraftShape
from tandem.protos.wire.drafting import draft_of

PLENTY = 10_000
Path = tuple[int, ...]
Children = list[Child]


@dataclass(frozen=True)
class World:
    """A drafter's proposals: log-probabilities of seven tokens after every path, all different."""

    seed: int

    def children(self, path: Path) -> Children:
        """Return all tokens, likeliest first."""
        noise = random.Random(f"{self.seed} {path}")
        gains = sorted((-noise.expovariate(1.0) - 0.01 for _ in range(7)), reverse=True)
        tokens = noise.sample(range(7), 7)
        return [Child(*each) for each in zip(tokens, gains, strict=True)]


worlds = st.builds(World, st.integers(0, 1 << 30))
shapes = st.builds(
    DraftShape, levels=st.integers(0, 5), branches=st.integers(1, 4), nodes=st.integers(0, 20)
)


def expand(growth: TokenTree, nodes: list[DraftNode], children: Callable[[Path], Children]) -> None:
    """Add the children of nodes."""
    growth.expand(nodes, [Expansion(children(tuple(growth.path(node)))) for node in nodes])


def grow(
    shape: DraftShape, children: Callable[[Path], Children], limit: int = PLENTY
) -> tuple[TokenTree, list[Path]]:
    """Return a finished growth, and the path of every fed node in the order of slots."""
    growth = TokenTree(shape, 0, limit)
    expand(growth, [growth.root], children)
    fed: list[Path] = []
    while frontier := growth.frontier(growth.window()):
        growth.feed(frontier)
        fed += [tuple(growth.path(node)) for node in frontier]
        expand(growth, frontier, children)
    return growth, fed


def finish(growth: TokenTree) -> tuple[Draft, tuple[int, ...]]:
    """Return the draft, and the slots of its leading nodes."""
    proposal, trunk = growth.whole_draft()
    return draft_of(proposal), tuple(trunk)


def paths(draft: Draft) -> list[Path]:
    """Return the tokens from the root to every node, in the order of the nodes."""
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
def test_the_tree_has_the_best_paths_of_all_in_preorder_with_the_likeliest_child_first(
    world: World, shape: DraftShape
) -> None:
    draft, _ = finish(grow(shape, world.children)[0])
    scores = best_paths(shape, world)

    def preorder(path: Path) -> list[Path]:
        children = sorted((p for p in scores if p[:-1] == path), key=lambda p: -scores[p])
        return [step for child in children for step in (child, *preorder(child))]

    assert tree.problem(draft.parents) is None
    assert paths(draft) == preorder(())


@given(worlds, shapes)
def test_the_trunk_says_where_the_leading_nodes_were_fed(world: World, shape: DraftShape) -> None:
    growth, fed = grow(shape, world.children)
    draft, trunk = finish(growth)
    leading = paths(draft)[: tree.trunk(draft.parents)]
    expected = [fed.index(path) for path in leading if path in fed]
    assert list(trunk) == expected
    assert expected == [fed.index(path) for path in leading[: len(expected)]], (
        "only the first of them are held"
    )


@given(worlds, shapes)
def test_what_was_fed_is_a_tree_in_the_order_of_its_places(world: World, shape: DraftShape) -> None:
    growth, fed = grow(shape, world.children)
    parents = growth.parents([])
    assert tree.problem(parents) is None
    assert [fed[parent] if parent >= 0 else () for parent in parents] == [path[:-1] for path in fed]
    assert growth.fed == len(fed)


@given(worlds, shapes, st.integers(0, 6))
def test_nothing_is_drafted_behind_the_draft_models_context(
    world: World, shape: DraftShape, limit: int
) -> None:
    growth, fed = grow(shape, world.children, limit)
    draft, trunk = finish(growth)
    assert max(map(len, paths(draft)), default=0) <= limit
    assert max(map(len, fed), default=0) < max(1, limit)
    assert len(fed) <= FED_PER_NODE * shape.nodes and len(draft) <= shape.nodes
    assert all(place < len(fed) for place in trunk)
    assert growth.full == (limit == 0)


@given(worlds, st.integers(1, 8))
def test_one_branch_gives_the_greedy_chain_and_feeds_all_but_its_last_token(
    world: World, levels: int
) -> None:
    growth, fed = grow(DraftShape.chain(levels), world.children)
    draft, trunk = finish(growth)
    greedy: Path = ()
    for _ in range(levels):
        greedy = (*greedy, world.children(greedy)[0][0])
    assert draft == Draft.chain(greedy)
    assert trunk == tuple(range(levels - 1)) and len(fed) == levels - 1


def rows(*gains: float) -> Children:
    """Return children 1, 2, ... with these log-probabilities."""
    return [Child(token, gain) for token, gain in enumerate(gains, 1)]


def test_among_equals_no_child_precedes_its_parent() -> None:
    draft, _ = finish(grow(DraftShape(4, 3, 3), lambda path: rows(0.0, 0.0, 0.0))[0])
    assert sorted(paths(draft)) == [(1,), (2,), (3,)]


def test_a_child_never_scores_above_its_parent_whatever_rounding_says() -> None:
    growth, _ = grow(DraftShape(2, 1, 2), lambda path: [Child(1, 1e-7 if path else -1.0)])
    assert [node.score for node in growth.window()] == [-1.0, -1.0]


def test_nothing_is_drafted_behind_a_token_that_the_drafter_does_not_trust() -> None:
    """The uncertain token itself is proposed, as in transformers' assisted generation."""

    def doubtful(path: Path) -> Children:
        return [Child(1, -0.1, 0.9 if len(path) < 2 else 0.3)]

    shape = replace(DraftShape.chain(6), confidence=0.4)
    assert finish(grow(shape, doubtful)[0])[0] == Draft.chain((1, 1, 1))


@given(worlds, shapes, st.floats(0.01, 0.9))
def test_a_node_below_the_floor_is_neither_fed_nor_sent(
    world: World, shape: DraftShape, chance: float
) -> None:
    everything = best_paths(shape, world)
    growth = TokenTree(shape, 0, PLENTY)
    growth.floor = math.log(chance)
    expand(growth, [growth.root], world.children)
    while frontier := growth.frontier(growth.window()):
        assert min(node.score for node in frontier) > math.log(chance)
        growth.feed(frontier)
        expand(growth, frontier, world.children)
    wanted = {path for path, score in everything.items() if score > math.log(chance)}
    assert set(paths(finish(growth)[0])) == wanted


def test_children_that_have_no_chance_are_not_kept() -> None:
    growth = TokenTree(
        DraftShape(3, 3, 9),
        0,
        PLENTY,
        worth=Worth(Conditions(), StepCosts(), DrafterHistory(), 0),
    )
    expand(growth, [growth.root], lambda path: rows(-1.0, -4.0, -5.0))
    growth.floor = -math.inf
    assert [node.token for node in growth.window()] == [1, 2]
