"""A combination of drafter, requests and link that `benchmarks.links` measures."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tandem.benchmarks.peers.delay import State

KINDS = re.compile(r"trained|random|hung|killed|slow(\d+)")


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of drafter, requests and link."""

    drafter: str
    temperature: float
    at_once: int
    round_trip: float  # ms
    jitter: float = 0.0  # ms
    loss: float = 0.0  # percent
    rate: float = 0.0  # kb/s in each direction; 0 = no limit

    @property
    def link(self) -> State:
        """The state of the link to the drafter in this case."""
        kind = KINDS.fullmatch(self.drafter)
        assert kind, "unknown kinds of drafters are refused earlier"
        seconds, extra = self.round_trip / 1000, int(kind[1] or 0) / 1000
        return State(
            seconds,
            extra,
            self.jitter / 1000,
            self.loss / 100,
            1000 * self.rate,
            hung=self.drafter == "hung",
            refusing=self.drafter == "killed",
        )
