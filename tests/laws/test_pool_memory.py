"""The pool against a list of numbers per room: rooms keep apart, keep what they hold, and are
refused only when there is no place for them.
"""

from __future__ import annotations

from itertools import combinations, count, pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.cache.kv import LayerGeometry, Pool
from engine.cache.rooms import BLOCK, SPARSE, Room

LAYERS = (LayerGeometry(1, 2, 1), LayerGeometry(2, 1, 3))
BLOCKS = 8
CPU = torch.device("cpu")
lengths = st.integers(0, 3 * BLOCK + 1)
which = st.integers(0, 1 << 20)


def new_pool(blocks: int = BLOCKS) -> Pool:
    """A pool of two layers of different shapes."""
    return Pool(LAYERS, blocks * BLOCK, torch.float32, CPU)


def blocks_for(length: int) -> int:
    """Positions that a room for `length` has at least: whole blocks, never none."""
    return max(1, -(-length // BLOCK)) * BLOCK


def write(pool: Pool, place: int, numbers: list[int]) -> None:
    """Store numbers in every head of every layer, keys, values and layers told apart."""
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = torch.tensor(numbers, dtype=torch.float32) + offset / 8
        store[place : place + len(numbers)] = rows[:, None, None]


def read(pool: Pool, room: Room, length: int) -> list[int]:
    """The first numbers of a room, which must be the same in all stores."""
    expected: list[float] | None = None
    for offset, store in enumerate((*pool.keys, *pool.values)):
        rows = store[room.start : room.start + length].flatten(1) - offset / 8
        assert bool((rows == rows[:, :1]).all()), "a row is torn"
        numbers = rows[:, 0].tolist()
        assert expected in (None, numbers), "stores differ"
        expected = numbers
    return [int(number) for number in expected or []]


class Memory(RuleBasedStateMachine):
    """Rooms come, grow, are written, moved about and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = new_pool()
        self.rooms: list[tuple[Room, list[int]]] = []
        self.fresh = count(1)

    def gaps(self) -> list[tuple[int, int]]:
        """Stretches between rooms, as long as can be: start and length."""
        ends = [(0, 0), *sorted((room.start, room.end) for room, _ in self.rooms)]
        ends.append((self.pool.positions, self.pool.positions))
        return [(end, start - end) for (_, end), (start, _) in pairwise(ends) if start > end]

    def fill(self, room: Room, numbers: list[int]) -> None:
        """Number the positions of a room behind the first ones."""
        new = [next(self.fresh) for _ in range(room.capacity - len(numbers))]
        write(self.pool, room.start + len(numbers), new)
        numbers += new

    @rule(length=lengths)
    def take(self, length: int) -> None:
        """A room comes if so much is free, wherever it lies; nobody moves if a hole has it: the
        largest if that is much larger, else the smallest.
        """
        gaps = self.gaps()
        before = [(room.start, room.capacity) for room, _ in self.rooms]
        room = self.pool.take(length)
        assert (room is None) == (sum(size for _, size in gaps) < blocks_for(length))
        if room is None:
            return
        assert room.capacity == blocks_for(length)
        if fitting := [size for _, size in gaps if size >= blocks_for(length)]:
            roomy = max(fitting) >= SPARSE * blocks_for(length)
            chosen = max(fitting) if roomy else min(fitting)
            assert [(room.start, room.capacity) for room, _ in self.rooms] == before
            assert any(
                size == chosen and start <= room.start and room.end <= start + size
                for start, size in gaps
            )
        self.rooms.append((room, []))
        self.fill(*self.rooms[-1])

    @precondition(lambda self: self.rooms)
    @rule(which=which, length=lengths)
    def grow(self, which: int, length: int) -> None:
        """A room that grows keeps what it holds; one that cannot is left alone."""
        room, numbers = self.rooms[which % len(self.rooms)]
        before, free = (room.start, room.capacity), sum(size for _, size in self.gaps())
        if self.pool.grow(room, length):
            assert room.capacity >= max(before[1], blocks_for(length))
            if blocks_for(length) <= before[1]:
                assert (room.start, room.capacity) == before, "it was large enough"
            self.fill(room, numbers)
            return
        assert (room.start, room.capacity) == before
        assert before[1] + free < blocks_for(length)

    @precondition(lambda self: self.rooms)
    @rule(which=which)
    def give_back(self, which: int) -> None:
        """A room goes, once."""
        room, _ = self.rooms.pop(which % len(self.rooms))
        self.pool.give_back(room)
        with pytest.raises(AssertionError):
            self.pool.give_back(room)

    @precondition(lambda self: self.rooms)
    @rule(which=which, data=st.data())
    def compact(self, which: int, data: st.DataObject) -> None:
        """The rows of a path come to lie in a row."""
        room, numbers = self.rooms[which % len(self.rooms)]
        start = data.draw(st.integers(0, room.capacity - 1))
        path = sorted(
            data.draw(st.sets(st.integers(0, min(9, room.capacity - start - 1)), max_size=5))
        )
        self.pool.compact(room, start, path)
        numbers[start : start + len(path)] = [numbers[start + node] for node in path]

    @precondition(lambda self: len(self.rooms) > 1)
    @rule(pair=st.tuples(which, which), length=st.integers(0, 2 * BLOCK))
    def copy(self, pair: tuple[int, int], length: int) -> None:
        """The first rows of one room are written to another."""
        (source, there), (target, here) = (self.rooms[place % len(self.rooms)] for place in pair)
        length = min(length, source.capacity, target.capacity)
        self.pool.copy(source, target, length)
        here[:length] = there[:length]

    @invariant()
    def rooms_are_apart_and_nothing_is_lost(self) -> None:
        """Rooms lie in the pool, whole blocks each; what is not theirs is free."""
        rooms = [room for room, _ in self.rooms]
        assert all(room.start >= 0 and room.end <= self.pool.positions for room in rooms)
        assert all(room.start % BLOCK == room.capacity % BLOCK == 0 for room in rooms)
        assert all(a.end <= b.start or b.end <= a.start for a, b in combinations(rooms, 2))
        assert self.pool.taken == sum(room.capacity for room in rooms)
        assert self.pool.taken + sum(size for _, size in self.gaps()) == self.pool.positions

    @invariant()
    def rooms_hold_what_was_written(self) -> None:
        """No room's rows were touched for another's sake."""
        for room, numbers in self.rooms:
            assert read(self.pool, room, len(numbers)) == numbers


def test_rooms_keep_apart_keep_their_rows_and_leave_no_position_unused() -> None:
    quick = settings(
        max_examples=100,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with torch.inference_mode():
        run_state_machine_as_test(Memory, settings=quick)


@given(st.integers(0, BLOCKS - 1), st.integers(1, BLOCKS), st.integers(1, BLOCKS))
def test_a_room_alone_in_the_pool_can_grow_to_all_of_it(before: int, size: int, want: int) -> None:
    """Wherever it lies: what is free on both sides is one stretch with its own place."""
    with torch.inference_mode():
        pool = new_pool()
        first = pool.take(before * BLOCK) if before else None
        room = pool.take(min(size, BLOCKS - before) * BLOCK)
        assert room is not None
        numbers = list(range(room.capacity))
        write(pool, room.start, numbers)
        if first:
            pool.give_back(first)
        assert pool.grow(room, want * BLOCK), "it stands in its own way"
        assert read(pool, room, len(numbers)) == numbers
        assert pool.taken == room.capacity >= want * BLOCK


@torch.inference_mode()
def test_in_a_pool_with_much_room_sessions_grow_where_they_are() -> None:
    """A move takes as long as a step, and all sessions wait for it."""
    pool = new_pool(128)
    rooms = [room for size in (1, 3, 2, 1, 16, 2, 1, 1) if (room := pool.take(size * BLOCK))]
    starts = [room.start for room in rooms]
    for size in range(2, 6):
        for room in rooms:
            assert pool.grow(room, size * BLOCK)
    assert [room.start for room in rooms] == starts


@pytest.mark.parametrize("sizes", [(1, 40, 45), (1, 1, 1, 1, 65)])
@torch.inference_mode()
def test_keeping_distance_leaves_place_for_large_rooms(sizes: tuple[int, ...]) -> None:
    pool = new_pool(128)
    rooms = [room for size in sizes[:-1] if (room := pool.take(size * BLOCK))]
    starts = [room.start for room in rooms]
    assert pool.take(sizes[-1] * BLOCK)
    assert [room.start for room in rooms] == starts


def test_wiping_touches_one_room_alone() -> None:
    pool = new_pool(3)
    with torch.inference_mode():
        rooms = [pool.take(BLOCK) for _ in range(3)]
        assert all(rooms)
        first, bad, last = [room for room in rooms if room]
        for number, room in enumerate((first, bad, last), start=1):
            write(pool, room.start, [number] * BLOCK)
        for store in (*pool.keys, *pool.values):
            store[bad.start : bad.end] = float("nan")
        pool.wipe(bad)
        assert read(pool, first, BLOCK) == [1] * BLOCK
        assert read(pool, last, BLOCK) == [3] * BLOCK
        assert all(not store[bad.start : bad.end].any() for store in pool.keys + pool.values)
