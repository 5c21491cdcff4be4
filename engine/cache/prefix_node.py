"""A node of the prefix tree: a cached page of a text, and the pages that follow it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass, field

from tandem.engine.cache.session import common_prefix_length


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A cached page, its tokens, and the nodes that follow it. The root node of a scope has no
    page.
    """

    scope: bytes = b""
    tokens: array[int] = field(default_factory=lambda: array("I"))
    page: int = -1
    parent: PrefixNode | None = None
    used: int = 0
    viewed: int = 0  # when a session last needed the page in sliding-window layers
    children: dict[bytes, PrefixNode] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)  # the keys of `children`, sorted

    def nearest(self, tokens: array[int]) -> PrefixNode | None:
        """Return the child whose tokens share the longest common prefix with `tokens`, or None if
        no child has the same first token.
        """
        near = self.neighbours(tokens)
        best = max(near, key=lambda child: common_prefix_length(child.tokens, tokens), default=None)
        return best if best and best.tokens[:1] == tokens[:1] else None

    def neighbours(self, tokens: array[int]) -> list[PrefixNode]:
        """Return the children directly before and after `tokens` in byte order. No other child has
        a longer common prefix with `tokens` than these two. If any child begins with `tokens`, the
        child directly after `tokens` does. No child is a prefix of another child. Therefore only
        the child directly before `tokens` can be a proper prefix of `tokens`.
        """
        at = bisect_left(self.keys, tokens.tobytes())
        return [self.children[key] for key in self.keys[max(0, at - 1) : at + 1]]

    def add(self, child: PrefixNode) -> None:
        """Add a child."""
        key = child.tokens.tobytes()
        self.children[key] = child
        insort(self.keys, key)

    def remove(self, child: PrefixNode) -> None:
        """Remove a child."""
        key = child.tokens.tobytes()
        del self.children[key], self.keys[bisect_left(self.keys, key)]
