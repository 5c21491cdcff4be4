"""Cache texts in a radix tree of pages for each scope. A session holds the pages of its text that
are in the tree already, whichever session filled them, and adds its own pages to the tree.

A page enters the tree once its tokens are committed, and is never written to again. The last page
of a text may be only partly filled when it enters the tree; a session that goes on from there
copies the page. In layers with a sliding window, a page may have given up its memory. No session
begins at a position from which one of these layers would need such a page.
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
    """The tree of a pool's cached pages. A session holds all pages from the root to its last page,
    so all pages below an idle page are idle too.
    """

    def __init__(self, pool: PageAllocator) -> None:
        self._pool = pool
        self._page = pool.page
        self._roots: dict[bytes, PrefixNode] = {}
        self._paths: dict[Session, list[PrefixNode]] = {}  # a session's nodes, one for each page
        self._uses = count(1)  # numbers the uses in their order
        self._order = count()  # numbers the entries of `_leaves`
        # nodes that may be dropped or lose memory, by last use
        self._leaves: list[tuple[int, int, PrefixNode]] = []

    @property
    def idle(self) -> int:
        """The size of the cached memory that no session needs."""
        return self._pool.idle

    def reach(self, session: Session, length: int) -> int:
        """Return after how many of its tokens, at most `length`, a session can go on."""
        return self._pool.usable(session.table.pages, super().reach(session, length))

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold the cached pages of a text. `reserve` finds the other memory that
        the session needs. An error of `reserve` is raised.
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
            self._leave([last])  # marks the node as used, so that it is evicted later
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
        """Put the pages that a session has filled into the tree, so that other sessions may begin
        with them. If the tree already has a page with the same text, the session goes on with that
        page. The session stops viewing pages that are no longer in any window.
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
        """Cut a session to its first `length` tokens. If other sessions share the last page and
        there is no memory for a copy, the session loses the tokens in that page, too. If layers
        with a window have given up pages that they would need, the session is cut to an earlier
        place from which it can go on.
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
        """Remove the pages that only this session holds from the tree, so that no session begins
        there.
        """
        self._withdraw(session, 0)
        session.settled = min(session.settled, len(self._paths[session]) * self._page)

    def end(self, session: Session) -> None:
        """End a session: empty its table, and keep its committed text cached."""
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
        """Free `size` of idle memory, least recently used first. Pages at the ends of texts are
        dropped. Pages that are no longer in any window give up their memory in layers with a
        window.
        """
        target = self._pool.free + size
        while self._pool.free < target and self._leaves:
            entry = heappop(self._leaves)
            if self._is_leaf(entry):
                self._drop(entry[2])
            elif self._is_unseen(entry):
                self._pool.release_memory(entry[2].page)

    def _insert(self, session: Session, tokens: array[int], page: int) -> PrefixNode:
        """Return the node of the tokens that follow a session's path. If there is no such node,
        make a node of `page`. For a partly filled page, any node that begins with the same tokens
        is returned. Nodes whose tokens are a prefix of the new node's tokens are dropped.
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
        """Remove the pages after the first `pages` that only this session holds from the tree."""
        path, holders = self._paths[session], self._pool.holders
        while len(path) > pages and not path[-1].children and holders(path[-1].page) == 1:
            self._drop(path.pop())

    def _root(self, scope: bytes) -> PrefixNode:
        return self._roots.setdefault(scope, PrefixNode(scope))

    def _leave(self, nodes: Sequence[PrefixNode]) -> None:
        """Note that a session no longer holds the nodes of a part of its path."""
        if nodes:
            self._touch(nodes[-1])
        self._drop_views(nodes)

    def _touch(self, node: PrefixNode) -> None:
        """Note that a session no longer holds a node."""
        node.used = next(self._uses)
        self._offer(node, node.used)

    def _drop_views(self, nodes: Iterable[PrefixNode]) -> None:
        """Note that a session no longer needs nodes in layers with a window."""
        for node in nodes if self._pool.footprint.windowed else ():
            node.viewed = next(self._uses)
            self._offer(node, node.viewed)

    def _offer(self, node: PrefixNode, used: int) -> None:
        """Queue an idle leaf for eviction, or an unseen node for the release of memory."""
        if len(self._leaves) > 2 * self._pool.numbered:  # most entries are out of date
            self._leaves = sorted(entry for entry in self._leaves if self._may_go(entry))
        entry = used, next(self._order), node
        if self._may_go(entry):
            heappush(self._leaves, entry)

    def _may_go(self, entry: tuple[int, int, PrefixNode]) -> bool:
        return self._is_leaf(entry) or self._is_unseen(entry)

    def _is_leaf(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether an entry's node is an idle leaf and unused since the entry was made."""
        used, _, node = entry
        alive = node.parent is not None and node.used == used and not node.children
        return alive and not self._pool.holders(node.page)

    def _is_unseen(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether an entry's node has memory in layers with a window that no session has
        needed since the entry was made.
        """
        used, _, node = entry
        return node.parent is not None and node.viewed == used and self._pool.unseen(node.page)

    def _drop(self, node: PrefixNode) -> None:
        """Take a leaf out of the tree."""
        parent, node.parent = node.parent, None
        assert parent and not node.children, "only a leaf can be dropped"
        parent.remove(node)
        self._pool.evict(node.page)
        parent.used = max(parent.used, node.used)
        if parent.parent:
            self._offer(parent, parent.used)
        elif not parent.children:
            del self._roots[parent.scope]
