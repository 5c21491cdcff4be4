"""Find the tokens that a grammar allows after a completion and a path of proposed tokens.

A matcher consumes a path and then rolls back, so the tokens allowed after one path do not depend on
other paths that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import Grammar
from tandem.protos.matching import GrammarCompiler, problem_of

Found = TypeVar("Found")


class GrammarMatcher:
    """The state of a grammar after a completion."""

    def __init__(
        self, compiler: GrammarCompiler, grammar: Grammar, completion: Sequence[int]
    ) -> None:
        """Raises InvalidRequest if the grammar is invalid or does not allow the completion."""
        self._compiler = compiler
        self._grammar = grammar
        self._completion: list[int] = []  # the completion, as far as the matcher has consumed it
        self._path: list[int] = []  # the path that the matcher has consumed after the completion
        self._problem = ""  # the error of the newest search, if any
        self._unknown = list[tuple[list[int], str]]()  # paths where a search failed, and its error
        self._start = compiler.compiled(grammar)
        self._shared = True  # whether the compiled grammar is shared with other matchers
        self._matcher = self._start.deep_copy()
        if not self._commit(completion):
            if self._problem:
                raise InvalidRequest.of(grammar.field, self._problem)
            raise InvalidRequest.of("received", f"is not what {grammar.field} allows")

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the completion. Raises InvalidRequest if the grammar forbids a token, or
        if a token follows a path for which `allowed` has failed.
        """
        for path, problem in self._unknown:
            if len(path) < len(tokens) and path == list(tokens[: len(path)]):
                raise InvalidRequest.of(self._grammar.field, problem)
        self._unknown.clear()
        if not self._commit(tokens):
            problem = self._problem or "allows no token that the model can draw here"
            raise InvalidRequest.of(self._grammar.field, problem)

    def allowed(self, path: Sequence[int], count: int) -> npt.NDArray[np.bool_] | None:
        """Return, for each of the first `count` token ids, whether it may follow a path: bool
        [count]. Returns None if the path itself is not allowed, or if the matcher fails. If the
        matcher fails, `extend` raises InvalidRequest once the completion is extended beyond this
        path.
        """
        bits = self._after(path, lambda matcher: matcher.compute_bitmask())
        if bits is None:
            if self._problem:
                self._unknown.append((list(path), self._problem))
            return None
        known = np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little")
        return known.view(np.bool_)

    def following(self, path: Sequence[int], tokens: Sequence[int]) -> Collection[int]:
        """Return which of the given `tokens` may follow a path according to the grammar."""

        def valid(matcher: LLMatcher) -> set[int]:
            return {token for token in tokens if matcher.validate_tokens([token])}

        return self._after(path, valid) or ()

    def forced(self, most: int) -> Sequence[int]:
        """Return up to `most` tokens that the grammar forces to follow the completion."""
        return (self._after((), lambda matcher: matcher.compute_ff_tokens()) or [])[:most]

    def _commit(self, tokens: Sequence[int]) -> bool:
        """Append tokens to the completion, up to but not including the first token that ends it.
        Returns whether the grammar allows the tokens.
        """
        ends = self._compiler.ends
        until = next((index for index, token in enumerate(tokens) if token in ends), len(tokens))
        reached = self._after(tokens[:until], lambda matcher: True) is not None
        self._completion += tokens[:until]
        self._path.clear()
        return reached

    def _after(self, path: Sequence[int], look: Callable[[LLMatcher], Found]) -> Found | None:
        """Move the matcher to the end of a path, call `look` with it, and return the result.
        Returns None if the path is not allowed, or if an error occurred. Other matchers that share
        the compiled grammar may have used up one of its limits. Therefore, after an error, the
        search is repeated once with a freshly compiled grammar.
        """
        while True:
            self._problem = ""
            if self._move(path):
                found = look(self._matcher)
                if not self._matcher.is_error():
                    return found
            elif not self._matcher.is_error():
                return None
            self._problem, again = problem_of(self._matcher), self._shared
            self._restart()
            if not again:
                return None

    def _move(self, path: Sequence[int]) -> bool:
        """Move the matcher to the end of a path; return whether the grammar allows the path."""
        pairs = enumerate(zip(self._path, path, strict=False))
        shorter = min(len(self._path), len(path))
        same = next((index for index, (old, new) in pairs if old != new), shorter)
        if same < len(self._path):
            self._matcher.rollback(len(self._path) - same)
            del self._path[same:]
        count = self._matcher.try_consume_tokens(list(path[same:]))
        self._path += path[same : same + count]
        return len(self._path) == len(path) and not self._matcher.is_error()

    def _restart(self) -> None:
        """Reset the matcher to the end of the completion, with a compiled grammar that no other
        matcher shares.
        """
        if self._shared:
            self._start, self._shared = self._compiler.fresh(self._grammar), False
        self._matcher = self._start.deep_copy()
        self._path.clear()
        self._matcher.try_consume_tokens(self._completion)
