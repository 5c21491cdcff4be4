"""The newest answers of each scope, in which drafts are looked up. Pure.

A scope is what pages are shared by: nothing of one is ever seen in another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from tandem.verifier_service.suffix_drafts import BOUNDARY, Tokens

SCOPES = 16  # whose answers fit in memory if each has as many tokens as it may
NONE: Tokens = np.empty(0, np.int32)


class RecentAnswers:
    """At most `tokens` tokens of each scope, the newest, and SCOPES times as many in all: then the
    scope that was asked for the longest time ago is forgotten. A token takes 4 bytes.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens, self._total = tokens, 0
        self._scopes: OrderedDict[bytes, Tokens] = OrderedDict()

    def __len__(self) -> int:
        """Tokens of all scopes."""
        return self._total

    def of(self, scope: bytes) -> Tokens:
        """All answers of a scope, each with a boundary behind it: int32 [tokens]."""
        if (known := self._scopes.get(scope)) is None:
            return NONE
        self._scopes.move_to_end(scope)
        return known

    def remember(self, scope: bytes, answer: Sequence[int]) -> None:
        """Another answer, and what of its prompt was before it."""
        if not self._tokens:
            return
        older, newest = self.of(scope), np.array([*answer, BOUNDARY], np.int32)[-self._tokens :]
        kept = older[max(0, len(older) + len(newest) - self._tokens) :]
        self._scopes[scope] = np.concatenate((kept, newest))
        self._total += len(kept) + len(newest) - len(older)
        while self._total > SCOPES * self._tokens:
            self._total -= len(self._scopes.popitem(last=False)[1])
