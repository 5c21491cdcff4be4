"""KV ranges and trees on few sequences of a shared cache: whatever happened before, a row sees its
own path and nothing else, and llama.cpp would take every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.forward.segment import Segment
from tandem.protos import tree
from tests.laws.cells import BAD, WIDTH, running

RANGES = 4
which = st.integers(0, 1 << 20)
tokens = st.integers(1, 9)


@dataclass
class Own:
    """A KV range as its owner knows it: a text, and nodes behind it that were fed."""

    table: PageTable
    text: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, node: int) -> list[int]:
        """The text up to a node."""
        return self.text + [self.drafted[each] for each in tree.path(self.parents, node)]


class Cache(RuleBasedStateMachine):
    """KV ranges come, read, grow trees, move along them, go back, share, overflow and go."""

    @initialize(sequences=st.integers(1, 7))
    def start(self, sequences: int) -> None:
        """Few sequences, and no more cells than KV ranges count."""
        self.sequences = sequences
        self.runner, self.decoder = running(RANGES * PAGE, sequences)
        self.tables: list[Own] = []

    def some(self, number: int) -> Own:
        """One of the KV ranges."""
        return self.tables[number % len(self.tables)]

    @rule()
    def take(self) -> None:
        """A KV range comes if there is one left."""
        table = self.runner.pool.allocate(WIDTH)
        assert (table is None) == (len(self.tables) == RANGES)
        if table:
            self.tables.append(Own(table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), bad=st.sampled_from((False,) * 7 + (True,)))
    def feed(self, data: st.DataObject, bad: bool) -> None:
        """A step of some KV ranges, each with more nodes of its tree anywhere; one may overflow."""
        fed: list[tuple[Own, Segment]] = []
        for own in data.draw(st.lists(st.sampled_from(self.tables), unique_by=id, min_size=1)):
            new = data.draw(st.lists(tokens, min_size=1, max_size=6))
            if len(own.text) + len(own.drafted) + len(new) >= WIDTH:
                continue
            if bad and not fed:
                new[-1] = BAD
            for token in new:
                own.parents.append(data.draw(st.integers(-1, len(own.parents) - 1)))
                own.drafted.append(token)
            wanted = data.draw(st.integers(0, len(new)))
            fed.append(
                (own, Segment(own.table, len(own.text), tuple(new), tuple(own.parents), wanted))
            )
        logits = self.runner([segment for _, segment in fed]) if fed else []
        for (own, segment), rows in zip(fed, logits, strict=True):
            assert rows.shape == (segment.wanted, WIDTH)
            if BAD in segment.tokens:
                assert bool(rows.isnan().all())
                assert not self.runner.pool.finite(own.table, 1)
                self.forget(own, 0)
                continue
            assert self.runner.pool.finite(own.table, 1)
            for node, row in enumerate(rows, len(own.parents) - segment.wanted):
                path = own.path(node)
                assert row.tolist() == path + [0.0] * (WIDTH - len(path))

    @precondition(lambda self: self.tables)
    @rule(number=which, data=st.data())
    def commit(self, number: int, data: st.DataObject) -> None:
        """The text goes on along the tree; some of what is behind it stays, in any order that has
        parents first.
        """
        own = self.some(number)
        if not own.drafted:
            return
        chosen = data.draw(st.integers(0, len(own.drafted) - 1))
        path = tree.path(own.parents, chosen)
        places = {chosen: -1}
        kept: list[int] = []
        for node, parent in enumerate(own.parents):
            if parent in places and node not in places and data.draw(st.booleans()):
                places[node] = len(kept)
                kept.append(node)
        self.runner.pool.compact(own.table, len(own.text), [*path, *kept])
        own.text = own.path(chosen)
        own.parents = [places[own.parents[node]] for node in kept]
        own.drafted = [own.drafted[node] for node in kept]

    @precondition(lambda self: self.tables)
    @rule(number=which, length=st.integers(0, WIDTH), wiped=st.booleans())
    def go_back(self, number: int, length: int, wiped: bool) -> None:
        """The text is shorter now, which the next step says, or a wipe."""
        own = self.some(number)
        length = min(length, len(own.text))
        if wiped:
            self.forget(own, length)
        own.text, own.drafted, own.parents = own.text[:length], [], []

    @precondition(lambda self: len(self.tables) > 1)
    @rule(pair=st.tuples(which, which), length=st.integers(0, WIDTH))
    def share(self, pair: tuple[int, int], length: int) -> None:
        """A KV range begins as another does."""
        source, target = self.some(pair[0]), self.some(pair[1])
        if source is target:
            return
        length = min(length, len(source.text))
        self.runner.pool.copy(source.table, target.table, 0, length)
        target.text, target.drafted, target.parents = source.text[:length], [], []

    @precondition(lambda self: self.tables)
    @rule(number=which)
    def release(self, number: int) -> None:
        """A KV range goes, once."""
        own = self.tables.pop(number % len(self.tables))
        self.runner.pool.release(own.table)

    def forget(self, own: Own, length: int) -> None:
        """A KV range is wiped."""
        self.runner.pool.wipe(own.table, length)
        own.text, own.drafted, own.parents = own.text[:length], [], []

    @invariant()
    def every_cell_is_some_ranges(self) -> None:
        """No more cells than places, and none for a sequence that is free."""
        used = {name for cell in self.decoder.cells for name in cell.sequences}
        assert len(used) <= self.sequences
        if not self.tables:
            assert not self.decoder.cells


def test_on_few_sequences_every_row_sees_its_own_path() -> None:
    run_state_machine_as_test(
        Cache,
        settings=settings(
            max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck)
        ),
    )


def test_a_tree_with_more_leaves_than_sequences_takes_several_decodes() -> None:
    """And the branch that was kept is fed again where its sequence was needed by another."""
    runner, decoder = running(PAGE, 3)
    table = runner.pool.allocate(WIDTH)
    assert table
    draft = Segment(table, 0, (1, *range(2, 12)), (-1, *[0] * 10), 11)
    (logits,) = runner([draft])
    assert decoder.decodes > 1
    assert [row[:2].tolist() for row in logits[1:]] == [[1, token] for token in range(2, 12)]
    runner.pool.compact(table, 0, [0, 1])
    (after,) = runner([Segment(table, 2, (5,), (-1,), 1)])
    assert after[0, :3].tolist() == [1, 2, 5]


def test_a_fork_shares_the_cells_of_its_text() -> None:
    runner, decoder = running(PAGE, 8)
    table = runner.pool.allocate(WIDTH)
    assert table
    runner([Segment(table, 0, tuple(range(1, 21)), tree.chain(20), 1)])
    runner([Segment(table, 20, (5, 6, 7), (-1, -1, -1), 3)])
    assert (len(decoder.cells), decoder.decodes) == (23, 2)


def test_a_growing_tree_is_fed_once() -> None:
    """Whatever grows where, and when the text goes on along a branch."""
    runner, decoder = running(PAGE, 8)
    table = runner.pool.allocate(WIDTH)
    assert table
    runner([Segment(table, 0, (1, 2), (-1, 0), 1)])
    runner([Segment(table, 2, (3, 4), (-1, -1), 2)])
    runner([Segment(table, 2, (5, 6), (-1, -1, 1, 0), 2)])
    runner([Segment(table, 2, (7, 8), (-1, -1, 1, 0, 3, 2), 2)])
    runner.pool.compact(table, 2, [1, 2, 5])
    (logits,) = runner([Segment(table, 3, (9,), (-1, 0, 1), 1)])
    assert logits[0, :6].tolist() == [1, 2, 4, 5, 8, 9]
    assert (decoder.fed, len(decoder.cells)) == (9, 6)
