"""Sessions of a drafter on the real draft model, stepped by hand."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tandem.drafter_service.drafting import TreeDrafter
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.worth import Conditions, DrafterHistory
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.batch import StepCosts
from tandem.engine.schedule.cost import AverageStepTimes
from tandem.protos import tree
from tandem.protos.streams import Drafting
from tandem.protos.types import LAST_TURN, Context, DraftShape, SamplingParams
from tests.laws.receiver import Receiver
from tests.services.jobs import Engine, Outbox, Running

SHAPE = DraftShape(12, 4, 32)
GREEDY = SamplingParams()
Tokens = tuple[int, ...]


class Drafter:
    """One session: its job, and a receiver of its proposals."""

    def __init__(
        self, engine: Engine, name: int, prompt: Tokens, conditions: Conditions, **asked: Any
    ):
        costs = StepCosts(averages=asked.pop("rates", AverageStepTimes()))
        host: Any = SimpleNamespace(
            sessions=engine.sessions,
            runner=engine.forward,
            config=ModelServiceConfig(model=engine.folder),
            thread=SimpleNamespace(costs=costs, wake=lambda: None),
        )
        self.engine, self.name = engine, bytes([name] * 16)
        context = asked.pop("context", None) or Context(self.name, 1, 0, prompt)
        known = asked.pop("known", DrafterHistory())
        settings = {"sampling": GREEDY, "shape": SHAPE} | asked
        stream: Any = Outbox()
        self.own, self.receiver = TreeDrafter(host), Receiver(prompt)
        self.own._history = known
        job = self.own.draft(Drafting(context, **settings), stream, conditions)
        self.running = Running(engine, job, stream)
        self.taken = 0

    def hear(self) -> None:
        """Deliver what the job sent to the receiver."""
        for proposal in self.running.stream.said[self.taken :]:
            self.receiver.take(proposal)
        self.taken = len(self.running.stream.said)

    def goes_on(self, tokens: Tokens) -> None:
        """Tell the job how the text continues."""
        self.running.tell(len(self.receiver.text), tokens)
        self.receiver.advance(tokens)

    def wander(self, noise: random.Random) -> None:
        """Continue the text along the tree, off the tree, or first along and then off it."""
        ahead = sorted(self.receiver.ahead())
        proposed = noise.choice(ahead)[: noise.randint(1, 4)] if ahead else ()
        surprise = tuple(noise.randrange(4000) for _ in range(noise.choice([0, 0, 1, 2])))
        if proposed or surprise:
            self.goes_on((*proposed, *surprise))

    def texts(self, segment: Segment) -> list[Tokens]:
        """Return the texts whose logits a segment asks for."""
        held = tuple(self.running.engine.sessions._open[self.name].tokens)
        nodes = range(len(segment.parents) - segment.num_logits, len(segment.parents))
        tokens = self._cached(segment) + segment.tokens
        paths = [tree.path(segment.parents, node) for node in nodes]
        return [held + tuple(tokens[node] for node in path) for path in paths]

    def _cached(self, segment: Segment) -> Tokens:
        """Return the tokens of the nodes that were fed before."""
        if not segment.cached:
            return ()
        assert isinstance(self.running.step_input, GrowingTree)
        fed = self.running.step_input._text.tree._fed
        assert len(fed) == segment.cached
        return tuple(node.token for node in fed)

    def close(self) -> None:
        """Close the session, and check that it leaves nothing behind."""
        self.running.job.close()
        self.own.close(self.name, LAST_TURN)


@contextmanager
def sessions_of(engine: Engine) -> Iterator[Callable[..., Drafter]]:
    """Return a function that makes sessions of an engine; fail if one leaves memory behind."""
    made: list[Drafter] = []

    def make(prompt: Tokens, conditions: Conditions | None = None, **asked: Any) -> Drafter:
        made.append(Drafter(engine, len(made), prompt, conditions or Conditions(), **asked))
        return made[-1]

    yield make
    for drafter in made:
        drafter.close()
    assert engine.sessions.usage == 0 and len(engine.sessions) == 0
