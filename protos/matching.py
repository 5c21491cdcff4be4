"""Compiles grammars for a tokenizer with llguidance, a library that computes which tokens may come
next.

The limits count steps of the library ("fuel") instead of seconds. Token masks and the refusal of
grammars therefore do not depend on the speed of the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import STYLE, Grammar, GrammarKind

MAX_CACHED_GRAMMARS = 32  # maximum number of cached compiled grammars
ANY_OBJECT = '{"type": "object"}'
# maximum number of tokens that the trial run of a grammar consumes, and step between the ids at
# which the search for the next allowed token begins
TRIAL_STEPS, TRIAL_STRIDE = 32, 7919
MAX_PROBLEM_LENGTH = 300  # maximum characters of a reported llguidance message
UNKNOWN_KEYS = re.compile(r"Unimplemented keys: (\[.*\])")
LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)


class GrammarCompiler:
    """Compiles grammars for one model. `ends` are the ids of the model's end tokens. The model's
    tokenizer is loaded when the first grammar is compiled. All methods may be called from any
    thread.
    """

    def __init__(self, tokenizer: Callable[[], Tokenizer], ends: Sequence[int]) -> None:
        self.ends = frozenset(ends)
        self._tokenizer = tokenizer
        self._kept = lru_cache(MAX_CACHED_GRAMMARS)(self.fresh)
        self._words = lru_cache(1)(self._read)

    def compiled(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher for a grammar, at the start of the text. Raises InvalidRequest if the
        grammar cannot be compiled. All matchers of the same grammar share their computed lexer
        states and one limit on the number of these states.
        """
        return self._kept(grammar).deep_copy()

    def fresh(self, grammar: Grammar) -> LLMatcher:
        """Compile a grammar to a matcher that shares no lexer states with other matchers. Raises
        InvalidRequest if the grammar cannot be compiled.
        """
        try:
            matcher = LLMatcher(self._words(), _written(grammar), log_level=0, limits=LIMITS)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest.of(grammar.field, f"cannot be used: {_line(error)}") from None
        if matcher.is_error():
            raise InvalidRequest.of(grammar.field, _problem(grammar, matcher.get_error()))
        return matcher

    def _read(self) -> LLTokenizer:
        if not self.ends:
            raise ValueError("the model has no token that ends a text")
        return LLTokenizer(self._tokenizer().to_str(), eos_token=sorted(self.ends))


def problem_of(matcher: LLMatcher) -> str:
    """Return the error that stopped a matcher, or an empty text if there is none. A matcher also
    stops at the end of a complete text, which is not an error.
    """
    if not matcher.is_error():
        return ""
    if matcher.get_error().startswith("NoExtensionBias"):
        return "admits no text"
    return f"is too complex: {_line(matcher.get_error())}"


def walk(matcher: LLMatcher, steps: int = TRIAL_STEPS) -> None:
    """Test a matcher with allowed tokens from all parts of the vocabulary, until the text is
    complete or `steps` tokens are consumed.
    """
    for step in range(steps):
        possible = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_stopped():
            return
        first = step * TRIAL_STRIDE % possible.bit_length()
        others = possible >> first
        token = first + (others & -others).bit_length() - 1
        if not matcher.consume_token(token):
            return


def _written(grammar: Grammar) -> str:
    """Convert a grammar to llguidance's notation. Raises ValueError if its text is invalid."""
    text = grammar.text
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return LLMatcher.grammar_from_json_schema(ANY_OBJECT, defaults=STYLE)  # type: ignore[arg-type]
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(text, defaults=STYLE)  # type: ignore[arg-type]
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(text)
        case GrammarKind.CHOICE:
            texts = (json.dumps(each, ensure_ascii=False) for each in _texts(text))
            return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(text)


def _texts(choice: str) -> list[str]:
    texts = json.loads(choice)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise ValueError("is not a list of texts")
    return texts


def _problem(grammar: Grammar, message: str) -> str:
    """Return what is wrong with a grammar, with the position of unsupported keywords in a JSON
    schema.
    """
    unknown = UNKNOWN_KEYS.search(message)
    if not unknown or grammar.kind is not GrammarKind.JSON_SCHEMA:
        return f"cannot be used: {_line(message)}"
    keys = json.loads(unknown[1])
    pointers = _pointers(json.loads(grammar.text), keys)
    return f"has {', '.join(keys)} at {next(pointers, '#')}, which is not supported"


def _pointers(schema: Any, keys: Sequence[str], here: str = "#") -> Iterator[str]:
    """Yield JSON pointers to the parts of a JSON schema that contain all of the given keywords."""
    if isinstance(schema, dict) and schema.keys() >= set(keys):
        yield here
    parts = schema.items() if isinstance(schema, dict) else enumerate(schema)
    for name, part in parts:
        if isinstance(part, dict | list):
            yield from _pointers(part, keys, f"{here}/{name}")


def _line(message: object) -> str:
    """Return the line of an llguidance error message that describes the problem."""
    lines = str(message).strip().splitlines() or ["?"]
    said = next((line for line in lines if line.startswith("error: ")), lines[0])
    return said.removeprefix("error: ")[:MAX_PROBLEM_LENGTH]
