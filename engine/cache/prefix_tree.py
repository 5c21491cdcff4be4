"""What is cached, as a radix tree of pages for each scope: a session holds the pages of its text
that are there already, whoever read them, and leaves its own there.

A page is in the tree once its tokens are committed, and never written to again. The last page of a
text may be in it too, filled in part: who goes on from there copies it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from tandem.engine.cache.pages import PageAllocator, PageTable
from tandem.engine.cache.prefixes import Prefixes
from tandem.engine.cache.session import Session, common_prefix_length


@dataclass(slots=True, eq=False)
class PrefixNode:
    """A page, its tokens, and below it those that follow. The root of a scope has no page."""

    scope: bytes = b""
    tokens: array[int] = field(default_factory=lambda: array("I"))
    page: int = -1
    parent: PrefixNode | None = None
    used: int = 0
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


class PrefixTree(Prefixes):
    """The pages of a pool that stay cached, whose sessions hold them from the root on: so whatever
    is below an idle page is idle too.
    """

    def __init__(self, pool: PageAllocator) -> None:
        self._pool, self._page = pool, pool.page
        self._roots: dict[bytes, PrefixNode] = {}
        self._paths: dict[Session, list[PrefixNode]] = {}  # of sessions, a node for a page
        self._uses, self._order = count(1), count()
        self._leaves: list[tuple[int, int, PrefixNode]] = []  # a heap, by last use

    @property
    def idle(self) -> int:
        """Positions that are cached, and held by no session."""
        return self._pool.idle

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold what is cached of a text."""
        wanted, page = array("I", tokens), self._page
        node, path = self._roots.get(session.scope, PrefixNode()), list[PrefixNode]()
        while child := node.children.get(wanted[len(path) * page :][:page].tobytes()):
            if len(child.tokens) < page:
                break
            node = child
            path.append(node)
        self._paths[session] = path
        whole = len(path) * page
        self._pool.share(session.table, [each.page for each in path])
        rest = wanted[whole : whole + page]
        length = whole
        if last := node.nearest(rest):
            length += common_prefix_length(last.tokens, rest)
            self._touch(last)  # so that others go before it
        reserve()
        if last and last.parent and length > whole:  # or it was evicted for this one
            source = PageTable([*session.table.pages[: len(path)], last.page], page)
            self._pool.copy(source, session.table, whole, length)
        else:
            length = whole
        session.tokens.extend(wanted[:length])
        session.settled = length

    def publish(self, session: Session) -> None:
        """Others may begin with the pages that a session has filled. Where another one has left the
        same already, the session goes on with that.
        """
        path, page = self._paths[session], self._page
        while (stop := (len(path) + 1) * page) <= session.settled:
            number = len(path)
            own = session.table.pages[number]
            node = self._insert(session, session.tokens[stop - page : stop], own)
            if node.page != own:
                self._pool.replace(session.table, number, node.page)
            path.append(node)

    def cut(self, session: Session, length: int) -> None:
        """Have a session hold its first `length` tokens only; less than a page fewer where the last
        page is not its alone, and there is no memory for a copy.
        """
        path, page = self._paths[session], self._page
        whole = length // page
        self._withdraw(session, whole)
        if whole < len(path):
            last, source = path[-1], PageTable(page=page)
            self._pool.share(source, session.table.pages[: whole + 1])
            del path[whole:]
            self._pool.release(session.table, whole)
            if length % page and not self._pool.free:
                self.evict(page)
            try:
                if length % page and self._pool.grow(session.table, length):
                    self._pool.copy(source, session.table, whole * page, length)
                else:
                    length = whole * page
            except BaseException:
                session.cut(whole * page)
                raise
            finally:
                self._pool.release(source)
                self._touch(last)
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Nobody is to begin with what this session alone holds."""
        self._withdraw(session, 0)
        session.settled = min(session.settled, len(self._paths[session]) * self._page)

    def end(self, session: Session) -> None:
        """A session ends: its table is empty then, and what it has committed stays cached."""
        self.publish(session)
        path = self._paths[session]
        rest = session.tokens[len(path) * self._page : session.settled]
        last = path[-1] if path else None
        if rest:
            last = self._insert(session, rest, session.table.pages[len(path)])
        self._pool.release(session.table)
        del self._paths[session]
        if last:
            self._touch(last)

    def evict(self, positions: int) -> None:
        """Free so many idle positions, those first that were used least recently."""
        target = self._pool.free + positions
        while self._pool.free < target and self._leaves:
            entry = heappop(self._leaves)
            if self._is_leaf(entry):
                self._drop(entry[2])

    def _insert(self, session: Session, tokens: array[int], page: int) -> PrefixNode:
        """The node of the tokens that follow a session's path, of a page that it holds if there is
        none yet. One that is filled in part may be found as the beginning of another, and makes way
        for those that it is the beginning of.
        """
        path = self._paths[session]
        parent = path[-1] if path else self._root(session.scope)
        if node := parent.children.get(tokens.tobytes()):
            return node
        near = parent.neighbours(tokens)
        for child in near:
            if child.tokens[: len(tokens)] == tokens:
                return child
        node = PrefixNode(session.scope, tokens, page, parent)
        parent.add(node)
        self._pool.cache(page)
        for child in near:
            if len(child.tokens) < len(tokens) and tokens[: len(child.tokens)] == child.tokens:
                self._drop(child)
        return node

    def _withdraw(self, session: Session, pages: int) -> None:
        """Take from the tree what a session alone holds, after its first pages."""
        path, holders = self._paths[session], self._pool.holders
        while len(path) > pages and not path[-1].children and holders(path[-1].page) == 1:
            self._drop(path.pop())

    def _root(self, scope: bytes) -> PrefixNode:
        return self._roots.setdefault(scope, PrefixNode(scope))

    def _touch(self, node: PrefixNode) -> None:
        """A session no longer holds a node."""
        node.used = next(self._uses)
        self._offer(node)

    def _offer(self, node: PrefixNode) -> None:
        """A node can be evicted if it is an idle leaf."""
        if len(self._leaves) > 2 * self._pool.positions // self._page:  # most are of the past
            self._leaves = sorted(entry for entry in self._leaves if self._is_leaf(entry))
        entry = node.used, next(self._order), node
        if self._is_leaf(entry):
            heappush(self._leaves, entry)

    def _is_leaf(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Whether a node is an idle leaf that was not used since."""
        used, _, node = entry
        alive = node.parent is not None and node.used == used and not node.children
        return alive and not self._pool.holders(node.page)

    def _drop(self, node: PrefixNode) -> None:
        """Take a leaf out of the tree."""
        parent, node.parent = node.parent, None
        assert parent and not node.children, "leaves go first"
        parent.remove(node)
        self._pool.evict(node.page)
        parent.used = max(parent.used, node.used)
        if parent.parent:
            self._offer(parent)
        elif not parent.children:
            del self._roots[parent.scope]
