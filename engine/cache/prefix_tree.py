"""Cache the tokens of sessions in a radix tree of KV pages for each scope. A session reuses all
pages of its text that the tree already has, whichever session filled them, and adds its own pages.

A page enters the tree once its tokens are committed, and is never written to again. The last page
of a text may be only partly filled when it enters the tree; a session that continues from there
uses a copy of the page. A cached page may have lost its memory in sliding-window layers. No session
starts at a position where a sliding-window layer would need memory that a page has lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from tandem.engine.cache.allocator import PageAllocator
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.prefix_node import PrefixNode
from tandem.engine.cache.prefixes import Prefixes
from tandem.engine.cache.session import Session, common_prefix_length


class PrefixTree(Prefixes):
    """The prefix tree of a pool's cached pages. A session holds all pages on the path from the root
    to its last page, so if no session holds a page, no session holds a page below it either.
    """

    def __init__(self, pool: PageAllocator) -> None:
        self._pool = pool
        self._page = pool.page
        self._roots: dict[bytes, PrefixNode] = {}
        self._paths: dict[Session, list[PrefixNode]] = {}  # a session's nodes, one for each page
        self._uses = count(1)  # logical clock: numbers the uses of nodes
        self._order = count()  # sequence numbers of queue entries
        # a heap of nodes that may be evicted or may lose memory, by last use
        self._leaves: list[tuple[int, int, PrefixNode]] = []

    @property
    def idle(self) -> int:
        """The size of the cached memory that no session needs."""
        return self._pool.idle

    def reach(self, session: Session, length: int) -> int:
        """Return the last position, at most `length`, from which a session can continue."""
        return self._pool.usable(session.table.pages, super().reach(session, length))

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Give a new session the cached pages that match the beginning of `tokens`. `reserve`
        allocates the rest of the memory that the session needs. Errors of `reserve` are passed on.
        """
        text, page = array("I", tokens), self._page
        node, path = self._roots.get(session.scope, PrefixNode()), list[PrefixNode]()
        while child := node.children.get(text[len(path) * page :][:page].tobytes()):
            if len(child.tokens) < page:
                break
            node = child
            path.append(node)
        pages = [each.page for each in path]
        whole = self._pool.usable(pages, len(path) * page)
        last = None
        if whole < len(path) * page:
            del path[whole // page :], pages[whole // page :]
        else:
            last = node.nearest(text[whole : whole + page])
        self._paths[session] = path
        self._pool.share(session.table, pages, self._pool.footprint.first(whole))
        length = whole
        if last:
            length += common_prefix_length(last.tokens, text[whole : whole + page])
            self._leave([last])  # marks the node as recently used, to delay its eviction
        session.tokens.extend(text[:whole])
        reserve()
        if last and last.parent and length > whole and not self._pool.unbacked(last.page):
            source = PageTable([*pages, last.page], page)
            self._pool.copy(source, session.table, whole, length)
        else:
            length = whole
        session.tokens.extend(text[whole:length])
        session.settled = length

    def publish(self, session: Session) -> None:
        """Add a session's filled and committed pages to the tree, so that other sessions can reuse
        them. If the tree already has a page with the same text, the session uses that page instead
        of its own. The session gives up the sliding-window memory of pages that have left all
        sliding windows.
        """
        path, page = self._paths[session], self._page
        while (stop := (len(path) + 1) * page) <= session.settled:
            number = len(path)
            own = session.table.pages[number]
            node = self._insert(session, session.tokens[stop - page : stop], own)
            if node.page != own:
                self._pool.replace(session.table, number, node.page)
            path.append(node)
        first, begun = self._pool.footprint.first(session.settled), session.table.first
        if first > begun:
            self._pool.look(session.table, first)
            self._drop_views(path[begun:first])

    def cut(self, session: Session, length: int) -> None:
        """Truncate a session to its first `length` tokens. If the last page belongs to the tree and
        there is no memory for a copy, the tokens in that page are dropped, too. If sliding-window
        layers would need memory that has been freed, the session is truncated to an earlier
        position from which it can continue.
        """
        path, page, table = self._paths[session], self._page, session.table
        length = self.reach(session, length)
        whole, first = length // page, self._pool.footprint.first(length)
        self._withdraw(session, whole)
        if whole < len(path) or first < table.first:
            left, source = path[whole:], PageTable(page=page)
            self._pool.share(source, table.pages[: -(-length // page)], first)
            del path[whole:]
            self._pool.release(table, whole)
            self._pool.look(table, first)
            try:
                self.evict(self._pool.price(table, length) - self._pool.free)
                if length % page and self._pool.grow(table, length):
                    self._pool.copy(source, table, whole * page, length)
                else:
                    length = whole * page
            except BaseException:
                session.cut(whole * page)
                raise
            finally:
                self._pool.release(source)
                self._leave(left)
        session.cut(length)

    def forget(self, session: Session) -> None:
        """Remove the pages that only this session holds from the tree, so that no other session
        reuses them.
        """
        self._withdraw(session, 0)
        session.settled = min(session.settled, len(self._paths[session]) * self._page)

    def end(self, session: Session) -> None:
        """End a session: release its pages, but keep its committed tokens cached."""
        self.publish(session)
        path = self._paths[session]
        remainder = session.tokens[len(path) * self._page : session.settled]
        last = path[-1] if path else None
        if remainder:
            last = self._insert(session, remainder, session.table.pages[len(path)])
        begun = session.table.first
        self._pool.release(session.table)
        del self._paths[session]
        if last:
            self._touch(last)
            self._drop_views([*path[begun:], last])

    def evict(self, size: int) -> None:
        """Free `size` units of idle memory, least recently used first. Leaf pages are evicted;
        other pages lose only the memory in sliding-window layers that no session needs.
        """
        target = self._pool.free + size
        while self._pool.free < target and self._leaves:
            entry = heappop(self._leaves)
            if self._is_leaf(entry):
                self._drop(entry[2])
            elif self._is_unseen(entry):
                self._pool.release_memory(entry[2].page)

    def _insert(self, session: Session, tokens: array[int], page: int) -> PrefixNode:
        """Return the node for `tokens`, which follow the tokens on a session's path. If `tokens` do
        not fill a page, return any node that begins with `tokens`. If no node is found, create one
        for `page`, and remove nodes whose tokens are a prefix of `tokens`.
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
        """Remove pages that only this session uses from the tree, except its first `pages`."""
        path, holders = self._paths[session], self._pool.holders
        while len(path) > pages and not path[-1].children and holders(path[-1].page) == 1:
            self._drop(path.pop())

    def _root(self, scope: bytes) -> PrefixNode:
        return self._roots.setdefault(scope, PrefixNode(scope))

    def _leave(self, nodes: Sequence[PrefixNode]) -> None:
        """Record that a session no longer holds the given nodes of its path."""
        if nodes:
            self._touch(nodes[-1])
        self._drop_views(nodes)

    def _touch(self, node: PrefixNode) -> None:
        """Record that a session no longer holds a node."""
        node.used = next(self._uses)
        self._offer(node, node.used)

    def _drop_views(self, nodes: Iterable[PrefixNode]) -> None:
        """Record that a session no longer needs the sliding-window memory of the given nodes."""
        for node in nodes if self._pool.footprint.windowed else ():
            node.viewed = next(self._uses)
            self._offer(node, node.viewed)

    def _offer(self, node: PrefixNode, used: int) -> None:
        """Queue a node for eviction if it is an idle leaf, or for the release of its sliding-window
        memory if no session needs that memory.
        """
        if len(self._leaves) > 2 * self._pool.numbered:  # most entries are outdated
            self._leaves = sorted(entry for entry in self._leaves if self._may_go(entry))
        entry = used, next(self._order), node
        if self._may_go(entry):
            heappush(self._leaves, entry)

    def _may_go(self, entry: tuple[int, int, PrefixNode]) -> bool:
        return self._is_leaf(entry) or self._is_unseen(entry)

    def _is_leaf(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether the node of a queue entry is an idle leaf that was not used since the
        entry was created.
        """
        used, _, node = entry
        alive = node.parent is not None and node.used == used and not node.children
        return alive and not self._pool.holders(node.page)

    def _is_unseen(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether the node of a queue entry has sliding-window memory that no session has
        needed since the entry was created.
        """
        used, _, node = entry
        return node.parent is not None and node.viewed == used and self._pool.unseen(node.page)

    def _drop(self, node: PrefixNode) -> None:
        """Remove a leaf from the tree, and stop caching its page."""
        parent, node.parent = node.parent, None
        assert parent and not node.children, "only a leaf can be dropped"
        parent.remove(node)
        self._pool.evict(node.page)
        parent.used = max(parent.used, node.used)
        if parent.parent:
            self._offer(parent, parent.used)
        elif not parent.children:
            del self._roots[parent.scope]
