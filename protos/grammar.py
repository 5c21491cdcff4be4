"""The grammar that a completion must follow, as its client wrote it.

Pure. Only `matching` compiles grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MAX_BYTES = 64 << 10
# The white space of JSON, as llguidance names it: with one way to write, more tokens are forced.
STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class GrammarKind(Enum):  # the numbers of this enum are the wire's
    """The ways in which a grammar is written."""

    JSON_SCHEMA = 1
    JSON_OBJECT = 2
    REGEX = 3
    CHOICE = 4
    LARK = 5


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of a kind. The text of a choice is a JSON array of texts; the text of JSON_OBJECT
    is empty.
    """

    kind: GrammarKind
    text: str = ""

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Grammar:
        """Return a grammar that admits exactly these texts."""
        return cls(GrammarKind.CHOICE, json.dumps(list(texts), ensure_ascii=False))

    @property
    def field(self) -> str:
        """The client's name of the request's field that has the grammar."""
        return f"sampling.{self.kind.name.lower()}"
