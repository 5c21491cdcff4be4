"""Change fields of Protobuf messages to odd values of the types that the schemas declare. The
module is pure: the random generator is an argument.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tandem.benchmarks.fuzz import odd

LIKELY: dict[str, tuple[str, ...]] = {  # plausible strings, by field name
    "json_schema": tuple(json.dumps(schema) for schema in odd.SCHEMAS),
    "parameters": tuple(json.dumps(schema) for schema in odd.SCHEMAS),
    "regex": odd.GRAMMARS["regex"],
    "lark": odd.GRAMMARS["grammar"],
    "tool_choice": ("auto", "required", "f"),
    "arguments": ("{}", "[]"),
    "role": ("user", "assistant", "tool"),
}
MAX_DEPTH = 4
CHANGE_COUNTS = (1, 1, 1, 2, 4)
SIGNED_32 = (
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_ENUM,
)
SIGNED_64 = FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED64
UNSIGNED_32 = FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_FIXED32
FLOATS = FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE


def change(message: Message, rng: Random, depth: int = 0) -> None:
    """Change one or several fields of a message, at any depth."""
    fields: Any = message.DESCRIPTOR.fields
    for _ in range(rng.choice(CHANGE_COUNTS) if fields else 0):
        _change(message, rng.choice(fields), rng, depth)


def _change(message: Message, field: FieldDescriptor, rng: Random, depth: int) -> None:
    """Change one field of a message: a map, a list, a message or a single value."""
    held: Any = getattr(message, field.name)
    nested = field.message_type
    if nested and nested.GetOptions().map_entry:
        _change_map(held, nested.fields_by_name, rng, depth)
    elif nested and field.is_repeated:
        for _ in range(rng.choice(odd.LIST_LENGTHS)):
            _change_nested(held.add(), rng, depth)
    elif nested:
        held.SetInParent()
        _change_nested(held, rng, depth)
    elif field.is_repeated:
        held.extend(_scalar(field, rng) for _ in range(rng.choice(odd.LIST_LENGTHS)))
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, rng))


def _change_map(held: Any, fields: Any, rng: Random, depth: int) -> None:
    for _ in range(rng.choice(odd.LIST_LENGTHS)):
        key = _scalar(fields["key"], rng)
        if fields["value"].message_type:
            _change_nested(held[key], rng, depth)
        else:
            held[key] = _scalar(fields["value"], rng)


def _change_nested(message: Message, rng: Random, depth: int) -> None:
    """Change a nested message with some probability, unless it is nested deeper than MAX_DEPTH."""
    if depth < MAX_DEPTH and rng.random() < 0.8:
        change(message, rng, depth + 1)


def _scalar(field: FieldDescriptor, rng: Random) -> Any:
    kind = field.type
    if kind == FieldDescriptor.TYPE_STRING:
        likely = LIKELY.get(field.name, ())
        return rng.choice(likely) if likely and rng.random() < 0.6 else odd.text(rng)
    if kind == FieldDescriptor.TYPE_BYTES:
        return odd.octets(rng)
    if kind == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if kind in FLOATS:
        return odd.number(rng)
    if kind == FieldDescriptor.TYPE_ENUM and rng.random() < 0.7:
        return rng.randrange(5)
    signed = kind in (*SIGNED_32, *SIGNED_64)
    return odd.whole(rng, 32 if kind in (*SIGNED_32, *UNSIGNED_32) else 64, signed)
