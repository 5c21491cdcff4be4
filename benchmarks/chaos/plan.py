"""Plan the faults of a run: pure, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A kind of fault of a process."""

    KILL = "kill"  # SIGKILL, and started again
    TERM = "term"  # SIGTERM, and started again
    STOP = "stop"  # SIGSTOP for a while
    HANG = "hang"  # its event loop blocks for a while, its connections stay
    SLOW = "slow"  # every step of its model takes .2 s longer, for a while
    CRAWL = "crawl"  # every step of its model takes 2 s longer, for a while


MODEL, PROCESS = frozenset(Kind), frozenset(Kind) - {Kind.SLOW, Kind.CRAWL}
SUFFERS = {
    "verifier": MODEL,
    "drafter": MODEL,
    "cell": PROCESS,
}
SECONDS = (1.0, 6.0)  # shortest and longest time that a fault lasts
PAUSE = (0.2, 2.0)  # until the next fault, once the system is whole


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its process, how long it lasts, and how long to wait before it."""

    kind: Kind
    role: str
    index: int
    seconds: float
    pause: float

    def __str__(self) -> str:
        lasting = "" if self.kind in (Kind.KILL, Kind.TERM) else f" {self.seconds:.1f} s"
        return f"{self.kind} {self.role} {self.index}{lasting}"


def faults(seed: int, members: Mapping[str, int], kinds: Sequence[Kind]) -> Iterator[Fault]:
    """Yield random faults without end. `members`: how many processes there are of each role."""
    rng = random.Random(seed)
    choices = [
        (kind, role)
        for role, count in members.items()
        for kind in kinds
        if count and kind in SUFFERS[role]
    ]
    while True:
        kind, role = rng.choice(choices)
        index, seconds = rng.randrange(members[role]), rng.uniform(*SECONDS)
        yield Fault(kind, role, index, seconds, rng.uniform(*PAUSE))
