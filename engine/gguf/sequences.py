"""Which of llama.cpp's sequences hold which paths of which KV ranges.

A KV range has a sequence for each leaf of its tree, and they share the cells of what the leaves
have in common. Sequences are few: one may be evicted for another, those of trees first, and its
tokens are fed again if they are ever needed. So nothing here ever fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.engine.gguf.path import SequencePath


class SequenceMemory(Protocol):
    """Cells, each of which belongs to some sequences."""

    def remove(self, sequence: int, start: int) -> None:
        """A sequence ends before position `start`."""

    def copy(self, source: int, target: int, stop: int) -> None:
        """An empty sequence gets what another holds up to position `stop`: the same cells."""

    def clear(self) -> None:
        """Nothing is cached."""


@dataclass(slots=True, eq=False)
class RangeContent:
    """What a KV range holds: the token of each place, and what of it is cached, by sequence."""

    tokens: array[int] = field(default_factory=lambda: array("I"))
    paths: dict[int, SequencePath] = field(default_factory=dict)
    used: int = 0  # in which step
    finite: bool = True

    @property
    def longest(self) -> int | None:
        """The sequence that holds most of the text; None if nothing is cached."""
        return max(self.paths, key=lambda name: self.paths[name].trunk, default=None)


class Sequences:
    """`count` of them in a memory."""

    def __init__(self, memory: SequenceMemory, count: int) -> None:
        self._memory = memory
        self.count = count
        self._free = list(range(count))
        self._all: list[RangeContent] = []

    def open(self) -> RangeContent:
        """A KV range that holds nothing."""
        self._all.append(content := RangeContent())
        return content

    def close(self, content: RangeContent) -> None:
        """A KV range is gone."""
        self._all.remove(content)
        for name in list(content.paths):
            self._release(content, name)

    def forget(self) -> None:
        """Nothing is cached any more; KV ranges still know their tokens."""
        self._memory.clear()
        for content in self._all:
            content.paths.clear()
        self._free = list(range(self.count))

    def share(self, source: RangeContent, target: RangeContent, count: int) -> None:
        """A KV range that caches nothing gets the first `count` places of another."""
        for name in list(target.paths):
            self._release(target, name)
        target.tokens = source.tokens[:count]
        longest = source.longest
        if longest is None or not (stop := min(source.paths[longest].trunk, count)):
            return
        spare = self.spare(source.paths)
        if spare is not None:
            self._memory.copy(longest, spare, stop)
            target.paths[spare] = SequencePath(stop)

    def cut(self, content: RangeContent, start: int) -> None:
        """A KV range ends before place `start`."""
        del content.tokens[start:]
        self.set_paths(content, {name: path.below(start) for name, path in content.paths.items()})

    def set_paths(self, content: RangeContent, paths: dict[int, SequencePath]) -> None:
        """What a KV range's sequences hold is no more than this, of as many positions as they keep;
        those that hold nothing of their own are free.
        """
        kept: list[SequencePath] = []
        for name in sorted(paths, key=lambda name: -len(paths[name])):
            path = paths[name]
            if not len(path) or any(path.is_prefix_of(other) for other in kept):
                self._release(content, name)
                continue
            kept.append(path)
            if len(path) < len(content.paths[name]):
                self._memory.remove(name, len(path))
            content.paths[name] = path

    def spare(self, pinned: Iterable[int], last: bool = False) -> int | None:
        """A sequence that is free, or one of a tree that is not pinned, of the KV range that was
        used least recently; or, if it must be, the `last` of a KV range. None if there is none.
        """
        if self._free:
            return self._free.pop()
        pinned = set(pinned)
        victims = [
            (len(content.paths) == 1, content.used, name, content)
            for content in self._all
            for name in content.paths
            if name not in pinned
        ]
        if not victims:
            return None
        only, _, name, content = min(victims, key=lambda each: each[:3])
        if only and not last:
            return None
        self._release(content, name)
        return self._free.pop()

    def fork(self, source: int, target: int, stop: int) -> None:
        """A spare sequence gets the first positions of another."""
        if stop:
            self._memory.copy(source, target, stop)

    def shorten(self, content: RangeContent, name: int, length: int) -> None:
        """A sequence ends before a position."""
        self._memory.remove(name, length)
        content.paths[name] = content.paths[name].first(length)

    def moved(self, content: RangeContent, start: int, path: Sequence[int]) -> None:
        """Places `start + path[i]` are places `start + i` now, and there are no more."""
        tokens = content.tokens
        new = array("I", (tokens[start + place] for place in path))
        places = {start + place: start + number for number, place in enumerate(path)}
        self.set_paths(
            content, {name: each.moved(start, places) for name, each in content.paths.items()}
        )
        del tokens[start:]
        tokens.extend(new)

    def _release(self, content: RangeContent, name: int) -> None:
        self._memory.remove(name, 0)
        del content.paths[name]
        self._free.append(name)
