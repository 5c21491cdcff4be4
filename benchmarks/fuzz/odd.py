"""Generate random values at the limits of their types and beyond these limits. The module is pure:
the random generator is an argument.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

TEXTS = ("", "a", "Once upon a time", "\x00", "é世界😀", "<|endoftext|>", "a" * 300, "word " * 2000)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.0,
    1e-45,
    3.4e38,
    -3.4e38,
    math.inf,
    -math.inf,
    math.nan,
)
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"enum": ["x", 1]}}, "required": ["a"]},
    {"type": "object"},
    {"type": "array", "items": {"$ref": "#"}},
    {"not": {}},
    {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, 20)]},
)
GRAMMARS: dict[str, tuple[Any, ...]] = {  # valid and invalid grammars, keyed by vLLM's option names
    "regex": ("[a-z]+", "(a{1000}){1000}", "(", "(?=a)b", "\\p{L}*", ""),
    "choice": (["yes", "no"], [""], [], ["a"] * 500, ["\x00", "é世界😀"]),
    "grammar": (
        'start: "a" | "b" start',
        "start: start",
        "start: " + "(" * 2000 + '"a"' + ")" * 2000,
        "start: /(.|\\n)*/ <|endoftext|>",
        "%llguidance {}",
    ),
}
LIST_LENGTHS = (1, 1, 2, 40)  # possible lengths of a list


def whole(rng: Random, bits: int, signed: bool) -> int:
    """Return a random integer of at most `bits` bits."""
    most = (1 << (bits - signed)) - 1
    least = -most - 1 if signed else 0
    return rng.choice((0, 1, 2, 7, 255, 512, most, most - 1, least, rng.randint(least, most)))


def number(rng: Random) -> float:
    """Return a random float, which may be whole, fractional, infinite or NaN."""
    return rng.choice((*FLOATS, rng.uniform(-3, 3)))


def text(rng: Random) -> str:
    """Return a random string, which may be empty, very long or not ASCII."""
    return rng.choice(TEXTS)


def octets(rng: Random) -> bytes:
    """Return random bytes, most likely sixteen of them."""
    return rng.randbytes(rng.choice((0, 1, 16, 16, 16, 17, 500)))


def json_value(rng: Random, depth: int = 0) -> Any:
    """Return a random JSON value."""
    plain = (None, True, False, whole(rng, 64, True), whole(rng, 32, False), number(rng), text(rng))
    kind = rng.randrange(len(plain) + (2 if depth < 3 else 0))
    if kind < len(plain):
        return plain[kind]
    values = [json_value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 20)))]
    if kind == len(plain):
        return values
    return {text(rng)[:20] or str(place): value for place, value in enumerate(values)}
