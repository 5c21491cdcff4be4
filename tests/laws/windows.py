"""Sessions of a model with a sliding window in one layer, on a pool that tracks its memory. Prompts
are read in chunks side by side, trees are decoded, sessions go back, fail and end, and there is too
little memory for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from random import Random

import torch

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.pool import KVPool, LayerGeometry
from tandem.engine.cache.session import JobEnded, Session
from tandem.engine.cache.sessions import IDLE_SECONDS, Sessions
from tandem.protos.errors import Busy, SessionMiss
from tandem.protos.types import Context

SHAPE, GARBAGE = Footprint(full=1, windowed=3, window=10, step=8, page=8), -7.0
LAYERS = [LayerGeometry(1, 1, 1), LayerGeometry(1, 1, 1, window=SHAPE.window)]
CONTEXT, MOST, TTL = 160, 3, 100.0
BEGINNINGS = [(), tuple(range(20, 60)), (*range(20, 45), *range(120, 180))]
NAMES = [bytes([name]) for name in range(5)]
Tokens = tuple[int, ...]


class Checked(KVPool):
    """A pool that knows which memory the system has handed out; memory that is given back becomes
    garbage.
    """

    def __init__(self, positions: int) -> None:
        super().__init__(LAYERS, positions, torch.float32, torch.device("cpu"), footprint=SHAPE)
        self.touched: list[set[int]] = [set(), set()]  # pages that were written, by layer

    def _give_back(self, page: int, everywhere: bool) -> None:
        for layer in (0, 1) if everywhere else (1,):
            self.touched[layer].discard(page)
            for store in (self.keys[layer], self.values[layer]):
                store[page * self.page : (page + 1) * self.page] = GARBAGE

    def _copy_windowed(self, source: int, target: int) -> None:
        super()._copy_windowed(source, target)
        self.touched[1].add(target)

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        super().copy(source, target, start, stop)
        for layer in self.touched:
            layer.add(target.pages[start // self.page])

    def write(self, table: PageTable, start: int, tokens: Tokens) -> None:
        """Write what feeding tokens stores in all layers."""
        slots = table.slots(start, start + len(tokens))
        for layer, touched in enumerate(self.touched):
            self.keys[layer][slots, 0, 0] = torch.tensor(tokens, dtype=torch.float32)
            touched |= {slot // self.page for slot in slots}

    def seen(self, table: PageTable, layer: int, start: int, stop: int) -> Tokens:
        """Return the tokens whose keys lie in these positions."""
        return tuple(self.keys[layer][table.slots(start, stop), 0, 0].int().tolist())

    def check_memory(self) -> None:
        """Check that no more memory is taken than there is, and no more needed than is taken."""
        full, windowed = map(len, self.touched)
        assert (full * SHAPE.full + windowed * SHAPE.windowed) * SHAPE.page <= self.size
        assert 0 <= self.idle <= self.allocated <= self.size


@dataclass
class Talk:
    """A session at work, as a job has it, and how much of its text was fed."""

    scope: ExitStack
    session: Session
    context: Context
    text: Tokens
    fed: int

    @property
    def reading(self) -> bool:
        """Return whether the session has not read its whole prompt."""
        return self.fed < len(self.text)


class WindowedService:
    """A service with memory for `pages` whole pages, and random events of its sessions."""

    def __init__(self, pages: int, rng: Random) -> None:
        self.at_work: dict[bytes, Talk] = {}
        self.known: dict[bytes, tuple[Tokens, int]] = {}  # text and epoch of the other sessions
        self.turns = count(1)
        self.rng, self.now = rng, 0.0
        self.pool = Checked(pages * SHAPE.page)
        self.sessions = Sessions(self.pool, CONTEXT, MOST, count(1).__next__, TTL, lambda: self.now)

    def act(self) -> None:
        """Cause a random event of a random session."""
        rng, name = self.rng, self.rng.choice(NAMES)
        if not (talk := self.at_work.get(name)):
            self.open(name)
        elif rng.random() < 0.08:
            self.end(name, talk)
        elif talk.reading:
            self.read(talk, rng.randint(1, SHAPE.step))
        elif rng.random() < 0.15:
            self.cut(talk, max(0, talk.fed - rng.choice([1, 3, 30])))
        else:
            self.decode(name, talk)
        if rng.random() < 0.1:
            idle, share = self.pool.idle, rng.choice([1, 1, 2, 5])
            free = self.pool.free
            self.pool.prefixes.evict(idle // share)
            assert self.pool.free >= free + idle // share, "idle memory can be had"

    @contextmanager
    def begun(self, context: Context) -> Iterator[Session]:
        """Begin a call."""
        with self.sessions.acquire(context, 0) as session:
            yield session

    def open(self, name: bytes) -> None:
        """Open a session, or continue with what it is known to hold."""
        rng = self.rng
        self.now += rng.choice([0.0, IDLE_SECONDS])
        text, epoch = self.known.pop(name, ((), 0))
        base = max(0, len(text) - rng.choice([0, 1, 9, 30])) if rng.random() < 0.6 else 0
        own = tuple(rng.randint(1, 4) for _ in range(rng.choice([1, 5, 60])))
        whole = ((text[:base] if base else rng.choice(BEGINNINGS)) + own)[:CONTEXT]
        if base >= len(whole):
            return
        context = Context(name, next(self.turns), base, whole[base:], epoch if base else 0)
        scope = ExitStack()
        with suppress(Busy, SessionMiss):
            session = scope.enter_context(self.begun(context))
            assert not base or session.length == base
            assert tuple(session.tokens) == whole[: session.length]
            self.at_work[name] = Talk(scope, session, context, whole, session.length)

    def read(self, talk: Talk, most: int) -> None:
        """Feed a chunk of a prompt; after the last one the session holds the text."""
        chunk = talk.text[talk.fed : talk.fed + most]
        self.feed(talk.session.table, talk.fed, chunk, talk.text)
        talk.fed += len(chunk)
        if not talk.reading:
            self.sessions.keep(talk.session, talk.context, ())

    def decode(self, name: bytes, talk: Talk) -> None:
        """Feed a tree and keep a part of a path, perhaps as a proposal."""
        session, rng = talk.session, self.rng
        nodes = tuple(rng.randint(1, 4) for _ in range(rng.choice([1, 4, 7])))
        if talk.fed + len(nodes) > CONTEXT:
            return self.end(name, talk)
        try:
            self.sessions.reserve(session, talk.fed + len(nodes))
        except Busy as error:
            return self.fail(name, talk, error)
        self.feed(session.table, talk.fed, nodes, talk.text + nodes)
        order = list(range(0, len(nodes), 2))[: rng.randint(0, 4)]
        path = tuple(nodes[node] for node in order)
        self.sessions.advance(session, path, order, len(path) * (rng.random() < 0.3))
        talk.text = tuple(session.tokens)
        talk.fed = len(talk.text)

    def cut(self, talk: Talk, length: int) -> None:
        """Cut a session back, perhaps somewhat farther than asked."""
        held = self.sessions.cut(talk.session, length)
        assert held <= length
        talk.text, talk.fed = talk.text[:held], held

    def feed(self, table: PageTable, start: int, chunk: Tokens, text: Tokens) -> None:
        """Run a pass, and check that each row sees what it should."""
        self.pool.prepare(table, start, start + len(chunk))
        self.pool.write(table, start, chunk)
        for row in range(start, start + len(chunk)):
            self.check(table, row + 1, text)

    def check(self, table: PageTable, length: int, text: Tokens) -> None:
        """Check what the last of these positions sees, and what the next one will see."""
        assert self.pool.seen(table, 0, 0, length) == text[:length]
        first = max(0, length + 1 - SHAPE.window)
        assert self.pool.seen(table, 1, first, length) == text[first:length]

    def end(self, name: bytes, talk: Talk) -> None:
        """End a call in one of several ways; the part of a prompt that it read may stay."""
        how = self.rng.choice(["done", "ended", "failed", "closed"])
        if how == "ended" and talk.reading:
            self.fail(name, talk, JobEnded(talk.fed))
            assert talk.session.length >= talk.fed
        elif how == "failed":
            self.fail(name, talk, ZeroDivisionError())
        else:
            talk.scope.close()
            del self.at_work[name]
        if how == "closed":
            self.sessions.close(name)
        elif talk.session.table.pages:
            self.known[name] = tuple(talk.session.tokens), talk.session.epoch

    def fail(self, name: bytes, talk: Talk, error: Exception) -> None:
        """Throw an error into a job."""
        del self.at_work[name]
        with suppress(type(error)):
            talk.scope.__exit__(type(error), error, None)

    def check_all(self) -> None:
        """Check that sessions at work keep their tokens, and that memory is counted rightly."""
        self.pool.check_memory()
        for talk in self.at_work.values():
            self.check(talk.session.table, talk.fed, talk.text)

    def close(self) -> None:
        """End all calls; then all cached memory can be had, and no memory is in use."""
        for talk in self.at_work.values():
            talk.scope.close()
        self.now += 2 * TTL
        self.sessions.expire()
        assert self.sessions.usage == 0
        self.pool.prefixes.evict(self.pool.size)
        assert self.pool.allocated == 0 and not self.pool._unbacked
