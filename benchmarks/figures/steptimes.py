"""The measured step times of one model, formatted as text and for JSON files.

This module neither times steps nor prints tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.benchmarks.figures.steps import Feed, Text
from tandem.engine.model.dtypes import DTYPES
from tandem.protos import tree
from tandem.protos.errors import Unusable

TYPICAL = (-1, 0, 1, 2, 1, 4, 0, 6, 7, 6, 9, 0, -1, 12, 13, -1)  # a typical draft tree
ONE, FIVE, TOGETHER = COMPARED = (
    Feed(1, tree.chain(1)),
    Feed(1, tree.chain(5)),
    Feed(16, tree.chain(5)),
)
LIBRARY, FLOOR = "transformers", "floor"


@dataclass(frozen=True, slots=True)
class Figures:
    """The results for one dtype. `seconds` has the median duration of a step for each system and
    step input. `floor` is the time to read the weights once.
    """

    dtype: str
    exactness: str
    text: Text
    seconds: Mapping[tuple[str, Feed], float]
    floor: float  # seconds
    weights: int
    read: int  # bytes of the weights that a step reads
    token: int  # bytes of KV cache per token
    # device time of captured passes in seconds, by number of rows
    passes: Mapping[int, float] = field(default_factory=dict)

    def row(self, system: str, feed: Feed) -> dict[str, Any]:
        """Return the time of one step of one system and derived values, for the JSON file."""
        seconds, alone = self.seconds[system, feed], self.seconds.get((LIBRARY, feed))
        return {
            "dtype": self.dtype,
            "system": system,
            "sessions": feed.sessions,
            "tokens": feed.tokens,
            "draft": "chain" if tree.is_chain(feed.parents) else "tree",
            "milliseconds": 1e3 * seconds,
            "floors": seconds / self.floor,
            "tokens_per_second": feed.sessions * feed.tokens / seconds,
            "ratio_to_one_token": seconds / self.seconds[system, ONE],
            "times_as_fast_as_transformers": alone / seconds if alone else None,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the JSON file: first the time to read the weights, and then every
        timed step.
        """
        floor = {
            "dtype": self.dtype,
            "system": FLOOR,
            "milliseconds": 1e3 * self.floor,
            "bytes_per_second": self.read / self.floor,
            "weight_bytes": self.weights,
            "weight_bytes_read": self.read,
            "cache_bytes_per_token": self.token,
            "exactness": self.exactness,
        }
        return [floor, *(self.row(*step) for step in self.seconds)]

    def captured(self) -> list[dict[str, Any]]:
        """Return the device times of captured passes, for the JSON file."""
        return [
            {
                "dtype": self.dtype,
                "rows": rows,
                "milliseconds": 1e3 * seconds,
                "floors": seconds / self.floor,
            }
            for rows, seconds in sorted(self.passes.items())
        ]

    def heading(self) -> str:
        """Return a heading with the sizes of weights and KV cache, the time to read the weights
        once, and the context lengths.
        """
        one, several = self.text.contexts(ONE.sessions), self.text.contexts(TOGETHER.sessions)
        speed = f"{self.read / self.floor / 1e9:.1f} GB/s"
        return (
            f"\n{self.dtype}, {self.exactness}\n"
            f"{self.weights / 1e6:.1f} MB of weights, {self.read / 1e6:.1f} read by a step;"
            f" the floor: reading them takes {1e3 * self.floor:.2f} ms ({speed})\n"
            f"{self.token} bytes of cache per token; cached tokens: {one[0]} in one session,"
            f" {several[0]} to {several[-1]} in several\n"
        )


def chosen(dtypes: str) -> list[str]:
    """Split a comma-separated list of dtypes. Raises Unusable if a dtype is unknown."""
    names = dtypes.split(",")
    for name in names:
        if name not in DTYPES:
            raise Unusable(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return names
