"""A tree that grows with the text equals a tree that begins there, and a receiver of its proposals
and commits knows the same tree.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.drafter_service.tree.node import DraftNode
from tandem.drafter_service.tree.session_text import new_tokens
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.protos import tree
from tandem.protos.errors import SessionMiss
from tandem.protos.types import MAX_LEVELS, DraftShape, Schedule
from tests.laws.receiver import Receiver
from tests.laws.test_token_tree import Path, World, expand, rows, shapes, worlds

PROMPT = (3, 1, 4)
PLENTY = 10_000
seeds = st.integers(0, 1 << 30)


class Drafter:
    """A growing tree, the content of its memory, and the receiver of its proposals. All texts are
    whole, from the first token on.
    """

    def __init__(self, world: World, shape: DraftShape) -> None:
        self.world, self.shape = world, shape
        self.growth = TokenTree(shape, len(PROMPT), PLENTY, source=5)
        self.text: Path = PROMPT
        # path of the node whose keys lie at each place behind the text
        self.memory: list[Path] = []
        self.receiver = Receiver(PROMPT)
        self.read()

    def path(self, node: DraftNode) -> Path:
        """Return the text that ends with a node."""
        return self.text + tuple(self.growth.path(node))

    def read(self) -> None:
        """Feed the root."""
        expand(self.growth, [self.growth.root], lambda path: self.world.children(self.text + path))

    def feed(self, nodes: list[DraftNode]) -> None:
        """Feed nodes of the frontier, in any order."""
        assert [self.path(node)[:-1] for node in nodes] == [
            (self.text, *self.memory)[parent + 1]
            for parent in self.growth.parents(nodes)[len(self.memory) :]
        ]
        self.memory += [self.path(node) for node in nodes]
        self.growth.feed(nodes)
        expand(self.growth, nodes, lambda path: self.world.children(self.text + path))

    def send(self) -> list[DraftNode]:
        """Send the new nodes; return the window."""
        window = self.growth.window()
        if proposal := self.growth.unsent(window):
            assert proposal.source == 5 and proposal.behind == len(self.text)
            self.receiver.take(proposal)
            for number, parent in enumerate(proposal.parents, proposal.first):
                behind_root = len(self.receiver.numbered[number]) == proposal.behind + 1
                assert behind_root == (parent == 0), "the root may have no number over there"
        return window

    def follow(self, tokens: Path) -> bool:
        """Extend the text; return whether the root was fed."""
        count, order = self.growth.follow(tokens)
        self.text += tokens
        self.receiver.advance(tokens)
        self.memory = [self.memory[place] for place in order]
        assert self.memory[:count] == [
            self.text[: len(self.text) - len(tokens) + n] for n in range(1, count + 1)
        ]
        del self.memory[:count]
        return count == len(tokens)

    def run(self, noise: random.Random, steps: int) -> Iterator[list[DraftNode]]:
        """Feed and follow at random; return the window after each step."""
        for _ in range(steps):
            window = self.send()
            yield window
            if frontier := self.growth.frontier(window):
                self.feed(noise.sample(frontier, noise.randint(1, min(3, len(frontier)))))
            if noise.random() < 0.4:
                ahead = sorted(self.receiver.ahead())
                proposed = noise.choice(ahead)[: noise.randint(1, 3)] if ahead else ()
                surprise = (noise.randrange(7),) if noise.random() < 0.5 or not proposed else ()
                if not self.follow((*proposed, *surprise)):
                    self.read()


def again(drafter: Drafter) -> TokenTree:
    """Return a tree that begins at the end of the text, with the same nodes fed, in the order of
    places.
    """
    growth = TokenTree(drafter.shape, len(drafter.text), PLENTY)
    nodes = [growth.root]
    expand(growth, nodes, lambda path: drafter.world.children(drafter.text + path))
    for text in drafter.memory:
        node = growth.root
        for token in text[len(drafter.text) :]:
            node = node.children[token]
        growth.feed([node])
        expand(growth, [node], lambda path: drafter.world.children(drafter.text + path))
    return growth


@given(worlds, shapes, seeds)
def test_a_tree_that_was_re_rooted_is_the_tree_that_begins_there(
    world: World, shape: DraftShape, seed: int
) -> None:
    drafter = Drafter(world, shape)
    for window in drafter.run(random.Random(seed), 20):
        other = again(drafter)
        base = drafter.growth.root.score
        assert drafter.growth.parents([]) == other.parents([])
        assert tree.problem(other.parents([])) is None
        mine = {tuple(drafter.growth.path(node)): node.score - base for node in window}
        theirs = {tuple(other.path(node)): node.score for node in other.window()}
        assert mine.keys() == theirs.keys()
        assert all(math.isclose(mine[path], theirs[path], abs_tol=1e-9) for path in mine)


@given(worlds, shapes, seeds)
def test_whoever_sees_proposals_and_commits_alone_has_the_window_and_is_sent_no_more(
    world: World, shape: DraftShape, seed: int
) -> None:
    drafter = Drafter(world, shape)
    for window in drafter.run(random.Random(seed), 20):
        base, length = drafter.growth.root.score, len(drafter.text)
        assert drafter.receiver.repeated == 0
        assert {tuple(drafter.growth.path(node)) for node in window} <= drafter.receiver.ahead()
        for node in window:
            path = drafter.path(node)
            ends = range(length + 1, len(path) + 1)
            score = sum(drafter.receiver.known[path[:end]] for end in ends)
            assert math.isclose(score, node.score - base, abs_tol=1e-9)
        assert len(window) <= shape.nodes
        assert all(1 <= node.position - length <= shape.levels for node in window)
        assert all(
            len(proposal.tokens) <= shape.nodes for proposal in drafter.receiver.proposals[-1:]
        )
        frontier = drafter.growth.frontier(window)
        assert set(frontier) <= set(window)
        assert all(node.position - length < shape.levels for node in frontier)


def test_commits_that_overlap_say_nothing_twice_and_none_may_be_missing() -> None:
    inbox = deque([(3, (1, 2)), (3, (1, 2)), (4, (2, 5, 6)), (7, (8,)), (2, (9,))])
    assert new_tokens(inbox, 3) == [1, 2, 5, 6, 8]
    assert not inbox
    with pytest.raises(SessionMiss):
        new_tokens(deque([(5, (1,))]), 4)


HEURISTIC = DraftShape(4, 2, 8, schedule=Schedule.HEURISTIC)


def levels_after(*texts: Path, shape: DraftShape = HEURISTIC) -> list[int]:
    """Return the levels of a drafter that always proposes 1, or at most 2, after each of these
    commits.
    """
    growth = TokenTree(shape, 0, PLENTY)
    found = []
    for text in texts:
        expand(growth, [growth.root], lambda path: rows(-0.5, -1.0))
        while frontier := growth.frontier(growth.window()):
            growth.feed(frontier)
            expand(growth, frontier, lambda path: rows(-0.5, -1.0))
        growth.follow(text, restart=True)
        found.append(growth.shape.levels)
        assert growth.shape.nodes == 2 * growth.shape.levels
    return found


def test_the_heuristic_goes_further_while_proposals_are_right_to_their_end() -> None:
    assert levels_after((1, 1, 1, 1, 3), (1,), (3,), (1, 3)) == [6, 8, 7, 6]
    assert levels_after(*[(1,) * 40] * 40)[-1] == MAX_LEVELS
    assert levels_after(*[(3,)] * 9)[-1] == 1
    constant = replace(HEURISTIC, schedule=Schedule.CONSTANT)
    assert levels_after((1, 1, 1, 1, 3), (3,), shape=constant) == [4, 4]
