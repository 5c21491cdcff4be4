"""Cache texts as a radix tree of pages for each scope: a session holds the pages of its text that
are in the tree already, whoever filled them, and leaves its own pages there.

A page enters the tree once its tokens are committed, and is never written to again. The last page
of a text may be in the tree half filled: a session that goes on from there copies it. In layers
with a sliding window a page may have given up its memory: no session begins at a place from which
it would see such a page.
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
    """The tree of a pool's cached pages. A session holds all pages from the root to its last one,
    so whatever is below an idle page is idle too.
    """

    def __init__(self, pool: PageAllocator) -> None:
        self._pool = pool
        self._page = pool.page
        self._roots: dict[bytes, PrefixNode] = {}
        self._paths: dict[Session, list[PrefixNode]] = {}  # a session's nodes, one for each page
        self._uses = count(1)  # the uses are numbered in their order
        self._order = count()  # the entries of `_leaves` are numbered
        # nodes that may be dropped or lose memory, by last use
        self._leaves: list[tuple[int, int, PrefixNode]] = []

    @property
    def idle(self) -> int:
        """The size of the memory that is cached and that no session needs."""
        return self._pool.idle

    def reach(self, session: Session, length: int) -> int:
        """Return the largest number of its tokens, up to `length`, after which a session can go
        on.
        """
        return self._pool.usable(session.table.pages, super().reach(session, length))

    def begin(self, session: Session, tokens: Sequence[int], reserve: Callable[[], None]) -> None:
        """Let a new session hold the pages that are cached of a text. `reserve` finds the memory
        that the session needs besides; an error that it raises is raised.
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
            self._leave([last])  # marks the node as used, so that others are evicted before it
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
        """Put the pages that a session has filled into the tree, so that others may begin with
        them. Where the tree has a page with the same text, the session goes on with that page. The
        session gives up its view of pages that the windows have left.
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
        """Have a session hold only its first `length` tokens. The session holds up to a page fewer
        where others share the last page and there is no memory for a copy, and fewer where layers
        with a window have given up pages that it would see.
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
        """Take the pages that this session alone holds from the tree, so that none begins there."""
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
        """Free `size` of idle memory, least recently used first: pages at the ends of texts, and
        windowed memory of pages that the windows have left.
        """
        target = self._pool.free + size
        while self._pool.free < target and self._leaves:
            entry = heappop(self._leaves)
            if self._is_leaf(entry):
                self._drop(entry[2])
            elif self._is_unseen(entry):
                self._pool.release_memory(entry[2].page)

    def _insert(self, session: Session, tokens: array[int], page: int) -> PrefixNode:
        """Return the node of the tokens that follow a session's path; if there is none, make one of
        `page`. For a page that is filled in part, a node that begins with the same tokens will do;
        nodes that are only the beginning of the new one are dropped.
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
        """Take from the tree the pages that a session alone holds, after its first `pages`."""
        path, holders = self._paths[session], self._pool.holders
        while len(path) > pages and not path[-1].children and holders(path[-1].page) == 1:
            self._drop(path.pop())

    def _root(self, scope: bytes) -> PrefixNode:
        return self._roots.setdefault(scope, PrefixNode(scope))

    def _leave(self, nodes: Sequence[PrefixNode]) -> None:
        """Note that a session no longer holds nodes, which follow each other."""
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
        """Queue a node for eviction if it is an idle leaf, or to release memory if it is unseen."""
        if len(self._leaves) > 2 * self._pool.numbered:  # most entries are out of date
            self._leaves = sorted(entry for entry in self._leaves if self._may_go(entry))
        entry = used, next(self._order), node
        if self._may_go(entry):
            heappush(self._leaves, entry)

    def _may_go(self, entry: tuple[int, int, PrefixNode]) -> bool:
        return self._is_leaf(entry) or self._is_unseen(entry)

    def _is_leaf(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether an entry's node is an idle leaf that was not used since."""
        used, _, node = entry
        alive = node.parent is not None and node.used == used and not node.children
        return alive and not self._pool.holders(node.page)

    def _is_unseen(self, entry: tuple[int, int, PrefixNode]) -> bool:
        """Return whether an entry's node has memory in layers with a window, and no session has
        needed it there since.
        """
        used, _, node = entry
        return node.parent is not None and node.viewed == used and self._pool.unseen(node.page)

    def _drop(self, node: PrefixNode) -> None:
        """Take a leaf out of the tree."""
        parent, node.parent = node.parent, None
        assert parent and not node.children, "leaves go first"
        parent.remove(node)
        self._pool.evict(node.page)
        parent.used = max(parent.used, node.used)
        if parent.parent:
            self._offer(parent, parent.used)
        elif not parent.children:
            del self._roots[parent.scope]
