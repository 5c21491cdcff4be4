"""A drafter with its own tokenizer, stepped by hand."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from tandem.drafter_service.foreign.chains import ChainJob
from tandem.drafter_service.foreign.chains import ChainSetup as Means
from tandem.drafter_service.foreign.target_text import TargetTexts
from tandem.drafter_service.foreign.translation import Translation
from tandem.models import EMBEDDED, TARGET
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.types import Context, DraftShape, SamplingParams
from tests.services.jobs import MOST, Engine, Outbox, Running

FOREIGN = EMBEDDED.parent / "foreign"
ID = b"session of a text"
GREEDY, SHAPE = SamplingParams(), DraftShape.chain(4)
Tokens = tuple[int, ...]


class Drafter:
    """The foreign draft model with a translation of its tokens."""

    def __init__(self, engine: Engine, texts: int = MOST) -> None:
        own, theirs = (Tokenizer.from_file(str(at / "tokenizer.json")) for at in (FOREIGN, TARGET))
        self.engine, self.texts = engine, TargetTexts(texts)
        tokens = engine.forward.model.token_count
        self.setup = Means(engine.sessions, Translation(own, theirs), self.texts, tokens)
        self.running: list[Running] = []

    def opened(self, context: Context, **asked: Any) -> Running:
        """Return a job that has begun."""
        stream: Any = Outbox()
        opening = Drafting(context, **({"sampling": GREEDY, "shape": SHAPE} | asked))
        self.running.append(
            Running(self.engine, ChainJob(self.setup, opening, stream).run(), stream)
        )
        return self.running[-1]

    def once(self, context: Context, **asked: Any) -> Proposal:
        """Return a single draft."""
        running = self.opened(context, once=True, **asked)
        (proposal,) = [*running.stream.said, *running.settle()][:1]
        assert running.step_input is None
        return proposal
