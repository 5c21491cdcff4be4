"""Plan the faults of a run. The module is pure: the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A kind of fault that a process can suffer."""

    KILL = "kill"  # kill a process with SIGKILL, and start it again
    TERM = "term"  # stop a process with SIGTERM, and start it again
    STOP = "stop"  # pause a process with SIGSTOP for a while
    HANG = "hang"  # block the event loop for a while, with all connections open
    SLOW = "slow"  # make every step of the model take 0.2 s longer, for a while
    CRAWL = "crawl"  # make every step of the model take 2 s longer, for a while


MODEL, PROCESS = frozenset(Kind), frozenset(Kind) - {Kind.SLOW, Kind.CRAWL}
SUFFERS = {
    "verifier": MODEL,
    "drafter": MODEL,
    "cell": PROCESS,
}
SECONDS = (1.0, 6.0)  # minimum and maximum duration of a fault
PAUSE = (0.2, 2.0)  # minimum and maximum time before a fault, with all processes serving


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the affected process, its duration, and the time to wait before it."""

    kind: Kind
    role: str
    index: int
    seconds: float
    pause: float

    def __str__(self) -> str:
        lasting = "" if self.kind in (Kind.KILL, Kind.TERM) else f" {self.seconds:.1f} s"
        return f"{self.kind} {self.role} {self.index}{lasting}"


def faults(seed: int, members: Mapping[str, int], kinds: Sequence[Kind]) -> Iterator[Fault]:
    """Yield an infinite sequence of random faults. `members` has the number of processes of each
    role.
    """
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
