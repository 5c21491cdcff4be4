"""Which addresses of a source are there, although a lookup may miss some of them. Pure.

A name server that is overloaded, or a file that is being written, answers with a part of the truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MISSES = 5  # lookups in a row without an address, after which it is gone


@dataclass(slots=True)
class Presence:
    """The addresses of one source."""

    _missed: dict[str, int] = field(default_factory=dict)  # lookups in a row that each was not in

    def after(self, found: Iterable[str]) -> tuple[str, ...]:
        """The addresses that there are after a lookup; one that failed is none."""
        missed = dict.fromkeys(found, 0)
        for address, count in self._missed.items():
            if address not in missed and count + 1 < MISSES:
                missed[address] = count + 1
        self._missed = missed
        return tuple(missed)
