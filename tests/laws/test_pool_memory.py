"""The pool against a list of numbers per KV range: KV ranges keep apart, keep what they hold, and
are refused only when there is no place for them. A pool takes the memory that was reckoned.
"""

from __future__ import annotations

from itertools import combinations, count, pairwise

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

from tandem.engine.cache.pool import KVPool, LayerGeometry, position_bytes
from tandem.engine.cache.ranges import BLOCK, SPARSE, KVRange

LAYERS = (LayerGeometry(1, 2, 1), LayerGeometry(2, 1, 3))
BLOCKS = 8
CPU = torch.device("cpu")
lengths = st.integers(0, 3 * BLOCK + 1)
which = st.integers(0, 1 << 20)


def new_pool(blocks: int = BLOCKS) -> KVPool:
    """A pool of two layers of different shapes, for kernels that read what no row sees."""
    return KVPool(LAYERS, blocks * BLOCK, torch.float32, CPU, reads_unseen=True)


def blocks_for(length: int) -> int:
    """Positions that a KV range for `length` has at least: whole blocks, never none."""
    return max(1, -(-length // BLOCK)) * BLOCK


def write(pool: KVPool, place: int, numbers: list[int]) -> None:
    """Store numbers in every head of every layer, keys, values and layers told apart."""
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = torch.tensor(numbers, dtype=torch.float32) + offset / 8
        store[place : place + len(numbers)] = rows[:, None, None]


def read(pool: KVPool, kv_range: KVRange, length: int) -> list[int]:
    """The first numbers of a KV range, which must be the same in all stores."""
    expected: list[float] | None = None
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = store[kv_range.start : kv_range.start + length].flatten(1) - offset / 8
        assert bool((rows == rows[:, :1]).all()), "a row is torn"
        numbers = rows[:, 0].tolist()
        assert expected in (None, numbers), "stores differ"
        expected = numbers
    return [int(number) for number in expected or []]


class Memory(RuleBasedStateMachine):
    """KV ranges come, grow, are written, moved about and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = new_pool()
        self.kv_ranges: list[tuple[KVRange, list[int]]] = []
        self.fresh = count(1)

    def gaps(self) -> list[tuple[int, int]]:
        """Stretches between KV ranges, as long as can be: start and length."""
        ends = [(0, 0), *sorted((kv_range.start, kv_range.end) for kv_range, _ in self.kv_ranges)]
        ends.append((self.pool.positions, self.pool.positions))
        return [(end, start - end) for (_, end), (start, _) in pairwise(ends) if start > end]

    def fill(self, kv_range: KVRange, numbers: list[int]) -> None:
        """Number the positions of a KV range behind the first ones."""
        new = [next(self.fresh) for _ in range(kv_range.capacity - len(numbers))]
        write(self.pool, kv_range.start + len(numbers), new)
        numbers += new

    @rule(length=lengths)
    def take(self, length: int) -> None:
        """A KV range comes if so much is free, wherever it lies; nobody moves if a hole has it: the
        largest if that is much larger, else the smallest.
        """
        gaps = self.gaps()
        before = [(kv_range.start, kv_range.capacity) for kv_range, _ in self.kv_ranges]
        kv_range = self.pool.allocate(length)
        assert (kv_range is None) == (sum(size for _, size in gaps) < blocks_for(length))
        if kv_range is None:
            return
        assert kv_range.capacity == blocks_for(length)
        if fitting := [size for _, size in gaps if size >= blocks_for(length)]:
            roomy = max(fitting) >= SPARSE * blocks_for(length)
            chosen = max(fitting) if roomy else min(fitting)
            assert [(kv_range.start, kv_range.capacity) for kv_range, _ in self.kv_ranges] == before
            assert any(
                size == chosen and start <= kv_range.start and kv_range.end <= start + size
                for start, size in gaps
            )
        self.kv_ranges.append((kv_range, []))
        self.fill(*self.kv_ranges[-1])

    @precondition(lambda self: self.kv_ranges)
    @rule(which=which, length=lengths)
    def grow(self, which: int, length: int) -> None:
        """A KV range that grows keeps what it holds; one that cannot is left alone."""
        kv_range, numbers = self.kv_ranges[which % len(self.kv_ranges)]
        before, free = (kv_range.start, kv_range.capacity), sum(size for _, size in self.gaps())
        if self.pool.grow(kv_range, length):
            assert kv_range.capacity >= max(before[1], blocks_for(length))
            if blocks_for(length) <= before[1]:
                assert (kv_range.start, kv_range.capacity) == before, "it was large enough"
            self.fill(kv_range, numbers)
            return
        assert (kv_range.start, kv_range.capacity) == before
        assert before[1] + free < blocks_for(length)

    @precondition(lambda self: self.kv_ranges)
    @rule(which=which)
    def release(self, which: int) -> None:
        """A KV range goes, once."""
        kv_range, _ = self.kv_ranges.pop(which % len(self.kv_ranges))
        self.pool.release(kv_range)
        with pytest.raises(AssertionError):
            self.pool.release(kv_range)

    @precondition(lambda self: self.kv_ranges)
    @rule(which=which, data=st.data())
    def compact(self, which: int, data: st.DataObject) -> None:
        """The rows of a path come to lie in a row."""
        kv_range, numbers = self.kv_ranges[which % len(self.kv_ranges)]
        start = data.draw(st.integers(0, kv_range.capacity - 1))
        path = sorted(
            data.draw(st.sets(st.integers(0, min(9, kv_range.capacity - start - 1)), max_size=5))
        )
        self.pool.compact(kv_range, start, path)
        numbers[start : start + len(path)] = [numbers[start + node] for node in path]

    @precondition(lambda self: self.kv_ranges)
    @rule(which=which)
    def wipe(self, which: int) -> None:
        """A KV range whose numbers overflowed is cleared, and written anew."""
        kv_range, numbers = self.kv_ranges[which % len(self.kv_ranges)]
        rows = [
            store[kv_range.start : kv_range.end] for store in (*self.pool.keys, *self.pool.values)
        ]
        for own in rows:
            own[:] = torch.nan
        self.pool.wipe(kv_range)
        assert not any(own.any() for own in rows)
        numbers.clear()
        self.fill(kv_range, numbers)

    @precondition(lambda self: len(self.kv_ranges) > 1)
    @rule(pair=st.tuples(which, which), length=st.integers(0, 2 * BLOCK))
    def copy(self, pair: tuple[int, int], length: int) -> None:
        """The first rows of one KV range are written to another."""
        (source, there), (target, here) = (
            self.kv_ranges[place % len(self.kv_ranges)] for place in pair
        )
        length = min(length, source.capacity, target.capacity)
        self.pool.copy(source, target, length)
        here[:length] = there[:length]

    @invariant()
    def ranges_do_not_overlap_and_nothing_is_lost(self) -> None:
        """KV ranges lie in the pool, whole blocks each; what is not theirs is free."""
        kv_ranges = [kv_range for kv_range, _ in self.kv_ranges]
        assert all(
            kv_range.start >= 0 and kv_range.end <= self.pool.positions for kv_range in kv_ranges
        )
        assert all(
            kv_range.start % BLOCK == kv_range.capacity % BLOCK == 0 for kv_range in kv_ranges
        )
        assert all(a.end <= b.start or b.end <= a.start for a, b in combinations(kv_ranges, 2))
        assert self.pool.allocated == sum(kv_range.capacity for kv_range in kv_ranges)
        assert self.pool.allocated + sum(size for _, size in self.gaps()) == self.pool.positions

    @invariant()
    def ranges_hold_what_was_written(self) -> None:
        """No KV range's rows were touched for another's sake."""
        for kv_range, numbers in self.kv_ranges:
            assert read(self.pool, kv_range, len(numbers)) == numbers


def test_ranges_do_not_overlap_keep_their_rows_and_leave_no_position_unused() -> None:
    quick = settings(
        max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
    )
    with torch.inference_mode():
        run_state_machine_as_test(Memory, settings=quick)


@torch.inference_mode()
def test_in_a_pool_with_much_space_sessions_grow_where_they_are() -> None:
    """A move takes as long as a step, and all sessions wait for it."""
    pool = new_pool(128)
    kv_ranges = [
        kv_range for size in (1, 3, 2, 1, 16, 2, 1, 1) if (kv_range := pool.allocate(size * BLOCK))
    ]
    starts = [kv_range.start for kv_range in kv_ranges]
    for size in range(2, 6):
        for kv_range in kv_ranges:
            assert pool.grow(kv_range, size * BLOCK)
    assert [kv_range.start for kv_range in kv_ranges] == starts


@pytest.mark.parametrize("sizes", [(1, 40, 45), (1, 1, 1, 1, 65)])
@torch.inference_mode()
def test_keeping_distance_leaves_place_for_large_ranges(sizes: tuple[int, ...]) -> None:
    pool = new_pool(128)
    kv_ranges = [kv_range for size in sizes[:-1] if (kv_range := pool.allocate(size * BLOCK))]
    starts = [kv_range.start for kv_range in kv_ranges]
    assert pool.allocate(sizes[-1] * BLOCK)
    assert [kv_range.start for kv_range in kv_ranges] == starts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_takes_the_memory_that_was_reckoned_and_whole_blocks(dtype: torch.dtype) -> None:
    pool = KVPool(LAYERS, 3 * BLOCK - 1, dtype, CPU)
    assert pool.positions == 2 * BLOCK
    stored = sum(store.nbytes for store in pool.keys + pool.values)
    assert stored == pool.positions * position_bytes(LAYERS, dtype)
    assert all(not store.any() for store in pool.keys + pool.values)


def test_untouched_positions_cost_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    pool = KVPool([LayerGeometry(8, 64, 64)], 1 << 18, torch.float32, CPU)
    assert pool.keys[0].nbytes + pool.values[0].nbytes == 1 << 30
    assert psutil.Process().memory_info().rss - before < 1 << 27


def test_a_new_session_takes_about_the_memory_that_it_fills() -> None:
    """With large pages it would take one per layer at once, while everybody waits."""
    layers = [LayerGeometry(8, 64, 64)] * 32
    pool = KVPool(layers, 1 << 13, torch.float32, CPU)
    before = psutil.Process().memory_info().rss
    kv_range = pool.allocate(BLOCK)
    assert kv_range
    write(pool, kv_range.start, list(range(BLOCK)))
    filled = BLOCK * position_bytes(layers, torch.float32)
    assert psutil.Process().memory_info().rss - before < filled + (1 << 23)
