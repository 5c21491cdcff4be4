"""Random schedules of faults for real relays, with simulated services, links and time.

Links break, and half-open ones linger. Services restart, evict sessions and ask callers to wait.
Openings arrive late and twice. Drafters send false proposals; proposals are lost and repeated.
Cells die, or live on for a while. Replicas are removed and come back, are slow for a while, and one
may serve another model. The verifiers form two groups.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

from tandem.orchestrator.links.balanced import BalancedLink
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.orchestrator.rounds.relay import Relay, Services
from tandem.protos.types import DraftShape, Rule, SamplingParams, TokenLogprobs
from tests.laws.peers import CLOSED, FENCES, Verifier, follows, likely
from tests.laws.proposing import Drafter
from tests.laws.wires import SLOW, Clock, Link

PROMPT, LENGTH = (1, 2, 3), 40
MOST_REPLICAS = 3  # most replicas of each service
SHAPES = DraftShape(0), *[DraftShape(8, 2, 32)] * 3


def alone(prompt: Sequence[int] = PROMPT) -> list[int]:
    """Return the text that the target decodes without drafts."""
    text = list(prompt)
    while len(text) < len(prompt) + LENGTH:
        text.append(follows(text))
    return text[len(prompt) :]


class VerifierLink(Link):
    """A link to verifiers that makes its cell check which verifier a text goes to."""

    def __init__(self, cell: Cell, server: Verifier) -> None:
        super().__init__(server)
        self.cell = cell

    def open(self, stream: int, opening: Any, subscriber: Any) -> None:
        self.cell.check(self, opening.group)
        super().open(stream, opening, subscriber)


class Cell:
    """One cell's part of a request: links to all replicas, and a relay whose steps the client reads
    now and then.
    """

    def __init__(self, world: World) -> None:
        self.world, self.session = world, world.rng.randbytes(16)
        self.links = (
            [VerifierLink(self, each) for each in world.verifiers],
            [Link(each) for each in world.drafters],
        )
        balanced = [
            BalancedLink({str(number): link for number, link in enumerate(links)})
            for links in self.links
        ]
        request = RunRequest(
            "",
            self.session,
            world.prompt,
            SamplingParams(rule=world.rule),
            LENGTH,
            shape=world.shape,
            completion=tuple(world.text),
            prompt_logprobs=0 if world.telling else None,
        )
        self.told: list[TokenLogprobs] = []
        self.balanced = balanced
        services = Services(*balanced, world.clock, count(1))
        self.relay = Relay(request, services, lambda: None)
        self.read()

    def read(self) -> None:
        """Read the steps that are ready if the client is still there, and leave replicas that are
        slow.
        """
        for balanced in self.balanced:
            balanced.leave_outliers(self.world.clock.now())
        while self.relay.steps:
            step = self.relay.take()
            if self is self.world.cell or "delivery" not in self.world.fences:
                self.world.text += step.tokens
            self.told += step.prompt_logprobs
        pause = self.world.rng.expovariate(1 if self.world.slow else 20)
        self.timer = self.world.clock.call_later(pause, self.read)

    def check(self, chosen: VerifierLink, group: str) -> None:
        """Check that a text leaves its verifier group only if each verifier of the group is lost or
        has just refused it.
        """
        links = {str(number): link for number, link in enumerate(self.links[0])}
        refused = self.balanced[0]._sessions[self.session].refused
        usable = [links[name] for name in self.balanced[0].names if name not in refused]
        same = any(link.connected and link.server.group == group for link in usable)
        self.world.strayed |= same and chosen.server.group != group

    def die(self) -> None:
        """Let the cell learn that nobody waits for its answer any more."""
        self.timer.cancel()
        self.relay.end()


class World:
    """One request under one schedule of faults."""

    def __init__(
        self,
        seed: int,
        fences: frozenset[str] = FENCES,
        evil: float = 0.1,
        faults: int = 12,
        telling: bool = False,
    ) -> None:
        """With `telling`, the request asks for the log-probabilities of its long prompt, too."""
        self.telling, self.prompt = telling, PROMPT * 20 if telling else PROMPT
        self.rng, self.clock = random.Random(seed), Clock()
        self.verifiers, self.drafters = (
            [kind(self.clock, self.rng, evil) for _ in range(self.rng.randint(1, MOST_REPLICAS))]
            for kind in (Verifier, Drafter)
        )
        self.fences = fences
        for service in (*self.verifiers, *self.drafters):
            service.fences = fences
            service.group = self.rng.choice("ab")
        self.rule = self.rng.choice((Rule.MATCH, Rule.MATCH, Rule.REJECT))
        self.shape = self.rng.choice(SHAPES)
        self.slow = self.rng.random() < 0.2
        self.faults = 0
        self.text: list[int] = []
        self.strayed = False
        self.cell: Cell | None = None
        self.cell = Cell(self)
        for _ in range(self.rng.randrange(faults + 1)):
            self.clock.call_later(8 * self.rng.random(), self.fault)

    def fault(self) -> None:
        """Something breaks."""
        assert self.cell
        self.faults += 1
        kind = self.rng.randrange(10)
        if kind < 2:
            self.rng.choice((self.verifiers, self.drafters)[kind]).restart()
        elif kind < 4:
            self.rng.choice((self.verifiers, self.drafters)[kind - 2]).evict()
        elif kind < 6:
            self.rng.choice(self.cell.links[kind - 4]).lose()
        elif kind == 6:
            self.remove_replica(self.cell, self.rng.randrange(2))
        elif kind < 9:
            slow = self.rng.choice((self.verifiers, self.drafters)[kind - 7])
            slow.passes = SLOW
            self.clock.call_later(4 * self.rng.random(), slow.recover)
        else:  # the cell is lost, and may live on for a while
            self.clock.call_later(4 * self.rng.random(), self.cell.die)
            self.cell = Cell(self)

    def remove_replica(self, cell: Cell, service: int) -> None:
        """Remove a replica from a cell for a while."""
        balanced, links = cell.balanced[service], cell.links[service]
        number = self.rng.randrange(len(links))
        name, link = str(number), links[number]
        if name in balanced.names:
            balanced.remove(name)
            self.clock.call_later(5 * self.rng.random(), lambda: balanced.add(name, link))

    def run(self) -> bool:
        """Return whether the text is the target's own, complete, in time, and from verifiers of one
        group as long as the group had any, and whether no other cell closed the newest cell's
        sessions.
        """
        assert self.cell
        finished = self.clock.pass_until(lambda: len(self.text) >= LENGTH and self.told())
        links = chain.from_iterable(self.cell.links)
        closed = any(str(error) == CLOSED for link in links for error in link.failures)
        right = self.text == alone(self.prompt)
        return finished and right and not (closed or self.strayed)

    def told(self) -> bool:
        """Return whether the newest cell has reported the whole prompt, and each of its tokens
        once.
        """
        places = range(2, len(self.prompt) + 1) if self.telling else ()
        return bool(self.cell and self.cell.told == [likely(self.prompt[:end]) for end in places])
