"""The newest answers of each scope, in which the verifier looks for tokens to propose. The module
is pure.

The answers of one scope are never used in another scope, just as sessions of different scopes never
share pages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from tandem.verifier_service.suffix_drafts import BOUNDARY, Tokens

MAX_FULL_SCOPES = 16  # number of scopes that are kept if each has the maximum number of tokens
NO_TOKENS: Tokens = np.empty(0, np.int32)


class RecentAnswers:
    """Keeps the newest `tokens` tokens of each scope's answers. All scopes together have at most
    MAX_FULL_SCOPES times `tokens` tokens; beyond that, the least recently used scope is dropped.
    Each token takes 4 bytes.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._total = 0
        self._scopes: OrderedDict[bytes, Tokens] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of tokens in all scopes together."""
        return self._total

    def of(self, scope: bytes) -> Tokens:
        """Return the tokens of all answers of a scope, with a boundary token after each answer:
        int32 [tokens].
        """
        if (known := self._scopes.get(scope)) is None:
            return NO_TOKENS
        self._scopes.move_to_end(scope)
        return known

    def remember(self, scope: bytes, answer: Sequence[int]) -> None:
        """Add an answer to a scope. `answer` begins with the last tokens of its prompt."""
        if not self._tokens:
            return
        older, newest = self.of(scope), np.array([*answer, BOUNDARY], np.int32)[-self._tokens :]
        kept = older[max(0, len(older) + len(newest) - self._tokens) :]
        self._scopes[scope] = np.concatenate((kept, newest))
        self._total += len(kept) + len(newest) - len(older)
        while self._total > MAX_FULL_SCOPES * self._tokens:
            self._total -= len(self._scopes.popitem(last=False)[1])
