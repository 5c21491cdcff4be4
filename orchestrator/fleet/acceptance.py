"""How many draft tokens of each drafter were verified, and how many of them accepted. Pure."""

from __future__ import annotations

from collections.abc import Collection


class Acceptance:
    """Counts by the address of a drafter, from when it came until it leaves."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, drafter: str, verified: int, accepted: int) -> None:
        """One step; of a drafter that is not there, any more or yet, nothing is counted."""
        if known := self._counts.get(drafter):
            self._counts[drafter] = known[0] + verified, known[1] + accepted

    def of(self, drafter: str) -> tuple[int, int]:
        """Verified and accepted draft tokens."""
        return self._counts.get(drafter, (0, 0))

    def retain(self, drafters: Collection[str]) -> None:
        """These are there now."""
        self._counts = {each: self.of(each) for each in drafters}
