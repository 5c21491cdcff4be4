"""Count how often each token occurs in a text, kept up to date as the text goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of a text, and how often each occurs."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self.add(tokens)

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        self._ids, self._counts = self._with(tokens)
        for place in range(len(self._places), len(self._ids)):
            self._places[int(self._ids[place])] = place

    def of(self, path: Sequence[int], vocabulary: int) -> tuple[Ids, Ids]:
        """Return the distinct tokens below `vocabulary` and their counts, both int64 [tokens], in
        the text and a path after it. The path is not added to the text.
        """
        ids, counts = self._with(path)
        known = ids < vocabulary
        return ids[known], counts[known]

    def _with(self, tokens: Sequence[int]) -> tuple[Ids, Ids]:
        more = Counter(tokens)
        fresh = {token: times for token, times in more.items() if token not in self._places}
        ids = np.concatenate([self._ids, np.array(list(fresh), np.int64)])
        counts = np.concatenate([self._counts, np.array(list(fresh.values()), np.int64)])
        for token in more.keys() - fresh.keys():
            counts[self._places[token]] += more[token]
        return ids, counts
