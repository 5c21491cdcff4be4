"""Compile the grammars of sessions in a separate thread, while the model thread goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tandem.engine.sampling.matcher import GrammarMatcher
from tandem.protos.errors import InvalidRequest
from tandem.protos.matching import GrammarCompiler
from tandem.protos.tokenizer import tokenizer_of
from tandem.protos.types import Context, SamplingParams


class Grammars:
    """Compiles grammars for the tokenizer of a model directory or file. `ends` lists the tokens
    that end a completion. `wake` is called whenever a grammar has been compiled. The tokenizer is
    loaded when the first grammar is compiled.
    """

    def __init__(self, model: Path, ends: Sequence[int], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._compiler = GrammarCompiler(lambda: tokenizer_of(model), ends)
        self._thread = ThreadPoolExecutor(1, "grammar")

    def begin(self, sampling: SamplingParams, context: Context) -> Future[GrammarMatcher] | None:
        """Start to compile a session's grammar. The future's result is a grammar matcher that has
        consumed the session's completion so far. Returns None if the session has no grammar. Either
        this method or the future raises InvalidRequest if the grammar or the context is invalid.
        """
        grammar = sampling.grammar
        if grammar is None:
            return None
        if context.base:
            raise InvalidRequest.of(
                "context.base", f"is {context.base}, but must be 0 with a grammar"
            )
        completion = context.tokens[sampling.prompt_length :]
        compiled = self._thread.submit(GrammarMatcher, self._compiler, grammar, completion)
        compiled.add_done_callback(lambda _: self._wake())
        return compiled
