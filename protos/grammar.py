"""The grammar that a completion must follow, as the client wrote it.

This module is pure. Only `matching` compiles grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MAX_BYTES = 64 << 10
# llguidance's options for white space in JSON. With fixed white space, the grammar allows only one
# next token at more positions, and such a token needs no draft model.
STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarKind(Enum):  # these numbers are sent in messages
    """The notations in which a grammar can be written."""

    JSON_SCHEMA = 1
    JSON_OBJECT = 2
    REGEX = 3
    CHOICE = 4
    LARK = 5


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar as text, and the notation of that text. For CHOICE the text is a JSON array of
    strings; for JSON_OBJECT it is empty.
    """

    kind: GrammarKind
    text: str = ""

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Grammar:
        """Return a grammar that allows exactly these texts."""
        return cls(GrammarKind.CHOICE, json.dumps(list(texts), ensure_ascii=False))

    @property
    def field(self) -> str:
        """The name of the request's field in which a client sends this grammar."""
        return f"sampling.{self.kind.name.lower()}"
