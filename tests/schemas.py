"""JSON schemas at random, and grammars of every kind."""

from __future__ import annotations

import random
from typing import Any

from tandem.protos.grammar import Grammar, GrammarKind

WORDS = ("name", "age", "of it", "a", "é", "x\ny")
GRAMMARS = (
    Grammar(GrammarKind.JSON_OBJECT),
    Grammar(GrammarKind.REGEX, r"(the|a) (cat|dog)( sat)? on the mat\."),
    Grammar.choice(["yes", "no", "perhaps not", 'a "quoted" one\n', "é"]),
    Grammar(GrammarKind.LARK, 'start: "[" n ("," n)* "]"\nn: /[0-9]+/'),
)


def drawn_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a schema whose answers are short."""
    kinds = [_text, _number, _enum, _pattern, _several]
    return rng.choice([*kinds, _object, _object, _array] if depth else kinds)(rng, depth)


def drawn_object(rng: random.Random) -> dict[str, Any]:
    """Return a schema of an object."""
    return _object(rng, 2)


def _text(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": rng.randint(0, 8)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"type": "integer", "minimum": rng.randint(-9, 9), "maximum": rng.randint(10, 500)}
    return {"type": rng.choice(["boolean", "null"])}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    values: list[object] = ["red", "green", "blue", 3, None, True, {"a": 1}]
    return {"enum": rng.sample(values, rng.randint(1, 4))}


def _pattern(rng: random.Random, depth: int) -> dict[str, Any]:
    return {
        "type": "string",
        "pattern": rng.choice([r"^[a-z]{2,5}$", r"^\d{3}-\d{2}$", "^(a|bc)+$"]),
    }


def _several(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_number(rng, 0), _text(rng, 0), {"const": "one"}]}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(WORDS, rng.randint(1, 4))
    properties = {name: drawn_schema(rng, depth - 1) for name in names}
    required = [name for name in names if rng.random() < 0.7]
    closed = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object"} | closed


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "array", "items": drawn_schema(rng, depth - 1), "maxItems": rng.randint(0, 3)}
