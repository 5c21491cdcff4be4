"""The pool is compared with a list of numbers per session: pages keep their content, whoever else
holds them, and a page is refused only if none is free. A pool takes exactly the memory that was
computed for it.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import KVPool, LayerGeometry, position_bytes

LAYERS = (LayerGeometry(1, 2, 1), LayerGeometry(2, 1, 3))
PAGES = 8
CPU = torch.device("cpu")
lengths = st.integers(0, 3 * PAGE + 1)
which = st.integers(0, 1 << 20)


def new_pool(pages: int = PAGES) -> KVPool:
    """Return a pool with two layers of different shapes."""
    return KVPool(LAYERS, pages * PAGE, torch.float32, CPU)


def pages_for(length: int) -> int:
    """Return how many pages a table for `length` positions has at least, never none."""
    return max(1, -(-length // PAGE))


def write(pool: KVPool, slots: list[int], numbers: list[int]) -> None:
    """Store numbers in every head of every layer, with different numbers for keys, values and
    layers.
    """
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = torch.tensor(numbers, dtype=torch.float32) + offset / 8
        store[slots] = rows[:, None, None].expand(-1, *store.shape[1:])


def read(pool: KVPool, table: PageTable, length: int) -> list[int]:
    """Return the first numbers of a table, which must be the same in all layers."""
    expected: list[float] | None = None
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = store[table.slots(0, length)].flatten(1) - offset / 8
        assert bool((rows == rows[:, :1]).all()), "a row is torn"
        numbers = rows[:, 0].tolist()
        assert expected in (None, numbers), "stores differ"
        expected = numbers
    return [int(number) for number in expected or []]


class Memory(RuleBasedStateMachine):
    """A random sequence in which tables come, grow, are written, share cached pages and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = new_pool()
        self.tables: list[tuple[PageTable, list[int]]] = []
        self.cached: dict[int, list[int]] = {}  # the content of each cached page
        self.fresh = count(1)

    def free(self) -> int:
        """Return the pages that are free."""
        held = {page for table, _ in self.tables for page in table.pages}
        return PAGES - len(held | set(self.cached))

    def fill(self, table: PageTable, numbers: list[int]) -> None:
        """Write numbers to the positions of a table after the first ones."""
        new = [next(self.fresh) for _ in range(table.capacity - len(numbers))]
        write(self.pool, table.slots(len(numbers), table.capacity), new)
        numbers += new

    def alone(self, page: int) -> bool:
        """Return whether a single table holds a page and no other table can get it."""
        return page not in self.cached and self.pool.holders(page) == 1

    def own(self, table: PageTable) -> int:
        """Return the first position from which on a table holds its pages alone."""
        return next((n for n, page in enumerate(table.pages) if self.alone(page)), len(table.pages))

    @rule(length=lengths)
    def take(self, length: int) -> None:
        """Make a table if enough memory is free."""
        free = self.free()
        table = self.pool.allocate(length)
        assert (table is None) == (free < pages_for(length))
        if table is not None:
            assert len(table.pages) == pages_for(length)
            self.tables.append((table, []))
            self.fill(*self.tables[-1])

    @precondition(lambda self: self.tables)
    @rule(which=which, length=lengths)
    def grow(self, which: int, length: int) -> None:
        """Grow a table; it keeps its content, also when it cannot grow."""
        table, numbers = self.tables[which % len(self.tables)]
        before, free = list(table.pages), self.free()
        grown = self.pool.grow(table, length)
        assert grown == (pages_for(length) - len(before) <= free)
        assert table.pages[: len(before)] == before
        assert len(table.pages) == (max(len(before), pages_for(length)) if grown else len(before))
        self.fill(table, numbers)

    @precondition(lambda self: self.tables)
    @rule(which=which, start=st.integers(0, 2))
    def release(self, which: int, start: int) -> None:
        """Release a table's last pages, or all pages and the table."""
        table, numbers = self.tables[which % len(self.tables)]
        self.pool.release(table, start)
        del numbers[start * PAGE :]
        if not table.pages:
            self.tables.remove((table, numbers))

    @precondition(lambda self: self.tables)
    @rule(which=which)
    def cache(self, which: int) -> None:
        """Keep a page for others."""
        table, numbers = self.tables[which % len(self.tables)]
        if (number := self.own(table)) < len(table.pages):
            self.pool.cache(table.pages[number])
            self.cached[table.pages[number]] = numbers[number * PAGE : (number + 1) * PAGE]

    @precondition(lambda self: self.cached)
    @rule(which=which)
    def share(self, which: int) -> None:
        """Begin a table with a cached page."""
        page = sorted(self.cached)[which % len(self.cached)]
        table = PageTable()
        self.pool.share(table, [page])
        self.tables.append((table, list(self.cached[page])))

    @precondition(lambda self: self.cached)
    @rule(which=which)
    def evict(self, which: int) -> None:
        """Keep a cached page no longer; tables that hold it keep it."""
        page = sorted(self.cached)[which % len(self.cached)]
        self.pool.evict(page)
        del self.cached[page]

    @precondition(lambda self: self.tables)
    @rule(which=which, data=st.data())
    def compact(self, which: int, data: st.DataObject) -> None:
        """Move the rows of a path next to each other."""
        table, numbers = self.tables[which % len(self.tables)]
        first = self.own(table) * PAGE
        if not all(map(self.alone, table.pages[first // PAGE :])) or first == table.capacity:
            return
        start = data.draw(st.integers(first, table.capacity - 1))
        nodes = st.sets(st.integers(0, min(9, table.capacity - start - 1)), max_size=5)
        path = sorted(data.draw(nodes))
        self.pool.compact(table, start, path)
        numbers[start : start + len(path)] = [numbers[start + node] for node in path]

    @precondition(lambda self: self.tables)
    @rule(which=which, source=which, length=st.integers(0, PAGE))
    def copy(self, which: int, source: int, length: int) -> None:
        """Copy the beginning of a page to a page that one table holds alone."""
        table, numbers = self.tables[which % len(self.tables)]
        other, there = self.tables[source % len(self.tables)]
        if self.alone(table.pages[0]):
            self.pool.copy(other, table, 0, length)
            numbers[:length] = there[:length]

    @invariant()
    def pages_are_counted(self) -> None:
        """Each page is free, held or cached; a page that is only cached counts as idle."""
        held = Counter(page for table, _ in self.tables for page in table.pages)
        assert all(self.pool.holders(page) == held[page] for page in range(PAGES))
        assert self.pool.free == self.free() * PAGE == self.pool.positions - self.pool.allocated
        assert self.pool.idle == len(self.cached.keys() - held) * PAGE

    @invariant()
    def pages_hold_what_was_written(self) -> None:
        """No write to one table changed another table's rows."""
        for table, numbers in self.tables:
            assert read(self.pool, table, len(numbers)) == numbers


def test_pages_keep_what_they_hold_and_none_is_lost() -> None:
    quick = settings(
        max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
    )
    with torch.inference_mode():
        run_state_machine_as_test(Memory, settings=quick)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_takes_the_memory_that_was_reckoned_and_whole_pages(dtype: torch.dtype) -> None:
    pool = KVPool(LAYERS, 3 * PAGE - 1, dtype, CPU)
    assert pool.positions == 2 * PAGE
    stored = sum(store.nbytes for store in pool.keys + pool.values)
    assert stored == pool.positions * position_bytes(LAYERS, dtype)
    assert all(not store.any() for store in pool.keys + pool.values)


def test_pages_that_were_used_are_used_again_before_others() -> None:
    """The system hands out memory at the first write, and all sessions wait meanwhile."""
    pool = new_pool()
    table = pool.allocate(2 * PAGE)
    assert table
    used = set(table.pages)
    pool.release(table)
    again = pool.allocate(2 * PAGE)
    assert again and set(again.pages) == used


def test_untouched_positions_cost_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    pool = KVPool([LayerGeometry(8, 64, 64)], 1 << 18, torch.float32, CPU)
    assert pool.keys[0].nbytes + pool.values[0].nbytes == 1 << 30
    assert psutil.Process().memory_info().rss - before < 1 << 27


def test_a_new_session_takes_about_the_memory_that_it_fills() -> None:
    """With huge pages, the first write would take one huge page per layer at once, and all sessions
    would wait.
    """
    layers = [LayerGeometry(8, 64, 64)] * 32
    pool = KVPool(layers, 1 << 13, torch.float32, CPU)
    before = psutil.Process().memory_info().rss
    table = pool.allocate(PAGE)
    assert table
    write(pool, table.slots(0, PAGE), list(range(PAGE)))
    filled = PAGE * position_bytes(layers, torch.float32)
    assert psutil.Process().memory_info().rss - before < filled + (1 << 23)
