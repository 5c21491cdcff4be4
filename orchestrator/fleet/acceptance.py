"""How many draft tokens of each drafter were verified, and how many of them accepted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection


class Acceptance:
    """Counts by the address of a drafter, from when it came until it leaves."""

    def __init__(self) -> None:
        self._verified: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()

    def add(self, drafter: str, verified: int, accepted: int) -> None:
        """One step."""
        self._verified[drafter] += verified
        self._accepted[drafter] += accepted

    def of(self, drafter: str) -> tuple[int, int]:
        """Verified and accepted draft tokens."""
        return self._verified[drafter], self._accepted[drafter]

    def retain(self, drafters: Collection[str]) -> None:
        """Only these are there now."""
        for counts in (self._verified, self._accepted):
            for gone in counts.keys() - set(drafters):
                del counts[gone]
