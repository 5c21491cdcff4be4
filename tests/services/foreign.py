"""A drafter with a tokenizer of its own, stepped by hand."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from drafter_service.foreign.chains import Chains
from drafter_service.foreign.chains import Engine as Means
from drafter_service.foreign.mirror import Mirrors
from drafter_service.foreign.translation import Translation
from models import EMBEDDED, TARGET
from protos.streams import Drafting, Guess
from protos.types import Context, DraftShape, SamplingParams
from tests.services.jobs import MOST, Engine, Port, Running

FOREIGN = EMBEDDED.parent / "foreign"
ID = b"session of a text"
GREEDY, SHAPE = SamplingParams(), DraftShape.chain(4)
Tokens = tuple[int, ...]


class Drafter:
    """The foreign draft model behind a translation."""

    def __init__(self, engine: Engine, mirrors: int = MOST) -> None:
        own, theirs = (Tokenizer.from_file(str(at / "tokenizer.json")) for at in (FOREIGN, TARGET))
        self.engine, self.mirrors = engine, Mirrors(mirrors)
        tokens = engine.forward.model.token_count
        self.means = Means(engine.sessions, Translation(own, theirs), self.mirrors, tokens)
        self.running: list[Running] = []

    def opened(self, context: Context, **asked: Any) -> Running:
        """A job that has begun."""
        port: Any = Port()
        opening = Drafting(context, **({"sampling": GREEDY, "shape": SHAPE} | asked))
        self.running.append(Running(self.engine, Chains(self.means, opening, port).run(), port))
        return self.running[-1]

    def once(self, context: Context, **asked: Any) -> Guess:
        """A single draft."""
        running = self.opened(context, once=True, **asked)
        (guess,) = [*running.port.said, *running.settle()][:1]
        assert running.offer is None
        return guess
