"""A page of a text that is cached, and those that follow it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from tandem.engine.cache.session import common_prefix_length


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A page, its tokens, and below it those that follow. The root of a scope has no page."""

    scope: bytes = b""
    tokens: array[int] = field(default_factory=lambda: array("I"))
    page: int = -1
    parent: PrefixNode | None = None
    used: int = 0
    viewed: int = 0  # the last time, in layers with a window
    children: dict[bytes, PrefixNode] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)  # of the children, in order

    def nearest(self, tokens: array[int]) -> PrefixNode | None:
        """The node below that has most leading tokens in common with others; None if none has."""
        near = self.neighbours(tokens)
        best = max(near, key=lambda child: common_prefix_length(child.tokens, tokens), default=None)
        return best if best and best.tokens[:1] == tokens[:1] else None

    def neighbours(self, tokens: array[int]) -> list[PrefixNode]:
        """The nodes below that stand before and after tokens in the order of their bytes: no other
        has more of them in common, begins with them, or, as no node below is the beginning of
        another, is their beginning.
        """
        at = bisect_left(self.keys, tokens.tobytes())
        return [self.children[key] for key in self.keys[max(0, at - 1) : at + 1]]

    def add(self, child: PrefixNode) -> None:
        """Have one more below."""
        key = child.tokens.tobytes()
        self.children[key] = child
        insort(self.keys, key)

    def remove(self, child: PrefixNode) -> None:
        """Have one no longer below."""
        key = child.tokens.tobytes()
        del self.children[key], self.keys[bisect_left(self.keys, key)]
