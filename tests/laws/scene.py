"""A relay between simulated services, and a reader of its results."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from tandem.orchestrator.rounds.generation import RunRequest
from tandem.orchestrator.rounds.relay import Relay, Services
from tandem.protos.errors import TandemError
from tandem.protos.streams import Decoding, Drafting
from tandem.protos.types import DraftShape, Rule, SamplingParams
from tests.laws.peers import Service, Verifier
from tests.laws.proposing import Drafter
from tests.laws.relayed import LENGTH, PROMPT
from tests.laws.wires import Call, Clock, Closing, Link, OnStream

SHAPE, SESSION = DraftShape(8, 2, 32), b"s" * 16
GREEDY, LOCKSTEP = SamplingParams(), SamplingParams(rule=Rule.REJECT)


class Scene:
    """One relay, its reader, and services without faults that remember what they were sent."""

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
        request = RunRequest("id", SESSION, PROMPT, sampling, LENGTH, stop, shape)
        services = Services(*self.links, self.clock, count(1))
        self.relay = Relay(request, services, lambda: None)
        self.generation = self.relay.generation

    @staticmethod
    def _noting(service: Service) -> list[OnStream | Closing]:
        sent: list[OnStream | Closing] = []
        receive = service.receive

        def noting(call: Call, item: OnStream | Closing) -> None:
            sent.append(item)
            receive(call, item)

        service.receive = noting  # type: ignore[method-assign]
        return sent

    def sent_to(self, service: Service, *kinds: type[Any]) -> list[tuple[int, Any]]:
        """Return the values of these kinds that a service was sent, each with its stream."""
        items = [item for item in self.sent[service] if isinstance(item, OnStream)]
        return [(item.stream, item.value) for item in items if isinstance(item.value, kinds)]

    def opened(self, service: Service) -> list[Any]:
        """Its openings."""
        return [opening for _, opening in self.sent_to(service, Decoding, Drafting)]

    def closed(self, service: Service) -> list[bytes]:
        """Return the sessions that a service was told to forget."""
        return [item.session_id for item in self.sent[service] if isinstance(item, Closing)]

    def wait(self, done: Callable[[], bool], seconds: float = 100.0) -> bool:
        return self.clock.pass_until(done, self.clock.time + seconds)

    def finish(self) -> list[int]:
        """Read to the end, and return the text."""
        assert self.wait(lambda: self.relay.ended)
        assert self.relay.error is None
        text = [token for step in self.relay.steps for token in step.tokens]
        assert text == self.generation.completion
        return text

    def refuse(self, service: Service, error: TandemError | None) -> None:
        """Have a service answer every opening with an error, or as usual without one."""
        if error is None:
            del service.open  # type: ignore[method-assign]
        else:
            service.open = lambda call, stream, opening: service.fail(  # type: ignore[method-assign]
                call, stream, error
            )
