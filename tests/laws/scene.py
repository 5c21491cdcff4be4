"""A crossing between simulated services, and what its reader gets."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from orchestrator.rounds.crossing import Crossing, Services
from orchestrator.rounds.generation import Generation
from protos.errors import TandemError
from protos.types import DraftShape, Rule, SamplingParams
from tests.laws.crossed import LENGTH, PROMPT, SESSION
from tests.laws.peers import Drafter, Service, Verifier
from tests.laws.wires import Call, Clock, Link

SHAPE = DraftShape(8, 2, 32)
SCHEDULES = 500
GREEDY, LOCKSTEP = SamplingParams(), SamplingParams(rule=Rule.REJECT)


class Scene:
    """One crossing, calm services that remember what they were sent, and a reader."""

    def __init__(
        self,
        shape: DraftShape = SHAPE,
        sampling: SamplingParams = GREEDY,
        stop: frozenset[int] = frozenset(),
    ) -> None:
        self.clock, rng = Clock(), random.Random(5)
        self.verifier, self.drafter = (kind(self.clock, rng, 0.0) for kind in (Verifier, Drafter))
        self.sent = {service: self._noting(service) for service in (self.verifier, self.drafter)}
        self.links = Link(self.verifier), Link(self.drafter)
        self.generation = Generation(SESSION, PROMPT, sampling, LENGTH, stop)
        services = Services(*self.links, self.clock, count(1))
        self.crossing = Crossing(self.generation, shape, "id", services, lambda: None)

    @staticmethod
    def _noting(service: Service) -> list[tuple[str, Any]]:
        sent: list[tuple[str, Any]] = []
        receive = service.receive

        def noting(call: Call, name: str, item: Any) -> None:
            sent.append((name, item))
            receive(call, name, item)

        service.receive = noting  # type: ignore[method-assign]
        return sent

    def sent_to(self, service: Service, name: str) -> list[Any]:
        return [item for each, item in self.sent[service] if each == name]

    def wait(self, done: Callable[[], bool], seconds: float = 100.0) -> bool:
        return self.clock.pass_until(done, self.clock.time + seconds)

    def finish(self) -> list[int]:
        """Read to the end: the text."""
        assert self.wait(lambda: self.crossing.ended)
        assert self.crossing.error is None
        text = [token for step in self.crossing.steps for token in step.tokens]
        assert text == self.generation.completion
        return text

    def refuse(self, service: Service, error: TandemError | None) -> None:
        """Answer every opening with an error, or as usual."""
        if error is None:
            del service.open  # type: ignore[method-assign]
        else:
            service.open = lambda call, message: service.fail(  # type: ignore[method-assign]
                call, message.stream, error
            )
