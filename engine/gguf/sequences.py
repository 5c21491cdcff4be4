"""Which of llama.cpp's sequences hold which paths of which rooms.

A room has a sequence for each leaf of its tree, and they share the cells of what the leaves have in
common. Sequences are few: whoever needs one may take it from others, trees first, and what was in
it is fed again if it is ever needed. So nothing here ever fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.gguf.path import Path


class Memory(Protocol):
    """Cells, each of which belongs to some sequences."""

    def remove(self, sequence: int, start: int) -> None:
        """A sequence ends before position `start`."""

    def copy(self, source: int, target: int, stop: int) -> None:
        """An empty sequence gets what another holds up to position `stop`: the same cells."""

    def clear(self) -> None:
        """Nothing is cached."""


@dataclass(slots=True, eq=False)
class Held:
    """What a room holds: the token of each place, and what of it is cached, by sequence."""

    tokens: array[int] = field(default_factory=lambda: array("I"))
    paths: dict[int, Path] = field(default_factory=dict)
    used: int = 0  # in which step
    finite: bool = True

    @property
    def longest(self) -> int | None:
        """The sequence that holds most of the text; None if nothing is cached."""
        return max(self.paths, key=lambda name: self.paths[name].trunk, default=None)


class Sequences:
    """`count` of them in a memory."""

    def __init__(self, memory: Memory, count: int) -> None:
        self._memory = memory
        self._count = count
        self._free = list(range(count))
        self._all: list[Held] = []

    def open(self) -> Held:
        """A room that holds nothing."""
        self._all.append(held := Held())
        return held

    def close(self, held: Held) -> None:
        """A room is gone."""
        self._all.remove(held)
        for name in list(held.paths):
            self._release(held, name)

    def forget(self) -> None:
        """Nothing is cached any more; rooms still know their tokens."""
        self._memory.clear()
        for held in self._all:
            held.paths.clear()
        self._free = list(range(self._count))

    def share(self, source: Held, target: Held, count: int) -> None:
        """A room that caches nothing gets the first `count` places of another."""
        for name in list(target.paths):
            self._release(target, name)
        target.tokens = source.tokens[:count]
        longest = source.longest
        if longest is None or not (stop := min(source.paths[longest].trunk, count)):
            return
        spare = self.spare(source.paths)
        if spare is not None:
            self._memory.copy(longest, spare, stop)
            target.paths[spare] = Path(stop)

    def cut(self, held: Held, start: int) -> None:
        """A room ends before place `start`."""
        del held.tokens[start:]
        self.become(held, {name: path.below(start) for name, path in held.paths.items()})

    def become(self, held: Held, paths: dict[int, Path]) -> None:
        """What a room's sequences hold is no more than this, of as many positions as they keep;
        those that hold nothing of their own are free.
        """
        kept: list[Path] = []
        for name in sorted(paths, key=lambda name: -len(paths[name])):
            path = paths[name]
            if not len(path) or any(path.begins(other) for other in kept):
                self._release(held, name)
                continue
            kept.append(path)
            if len(path) < len(held.paths[name]):
                self._memory.remove(name, len(path))
            held.paths[name] = path

    def spare(self, pinned: Iterable[int], last: bool = False) -> int | None:
        """A sequence that is free, or one of a tree that is not pinned, of the room that was used
        least recently; or, if it must be, the `last` of a room. None if there is none.
        """
        if self._free:
            return self._free.pop()
        pinned = set(pinned)
        victims = [
            (len(held.paths) == 1, held.used, name, held)
            for held in self._all
            for name in held.paths
            if name not in pinned
        ]
        if not victims:
            return None
        only, _, name, held = min(victims, key=lambda each: each[:3])
        if only and not last:
            return None
        self._release(held, name)
        return self._free.pop()

    def fork(self, source: int, target: int, stop: int) -> None:
        """A spare sequence gets the first positions of another."""
        if stop:
            self._memory.copy(source, target, stop)

    def shorten(self, held: Held, name: int, length: int) -> None:
        """A sequence ends before a position."""
        self._memory.remove(name, length)
        held.paths[name] = held.paths[name].first(length)

    def moved(self, held: Held, start: int, path: Sequence[int]) -> None:
        """Places `start + path[i]` are places `start + i` now, and there are no more."""
        tokens = held.tokens
        new = array("I", (tokens[start + place] for place in path))
        places = {start + place: start + number for number, place in enumerate(path)}
        self.become(held, {name: each.moved(start, places) for name, each in held.paths.items()})
        del tokens[start:]
        tokens.extend(new)

    def _release(self, held: Held, name: int) -> None:
        self._memory.remove(name, 0)
        del held.paths[name]
        self._free.append(name)
