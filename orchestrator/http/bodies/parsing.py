"""Parse the content of an HTTP request into a validated body, and report invalid fields by name.
The module is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from tandem.orchestrator.http.bodies import tolerance
from tandem.orchestrator.http.bodies.tolerance import Json
from tandem.protos.errors import InvalidRequest, Violation

MAX_MISTAKES, MAX_NAME_LENGTH = 32, 64
MISTAKES = {"missing": "is missing", "extra_forbidden": "is not supported"}
UNCHANGED: Mapping[str, str] = {}
Parsed = TypeVar("Parsed", bound=BaseModel)


def read(content: bytes) -> tuple[Json, tuple[str, ...]]:
    """Return the fields of a body that can affect the answer, and the names of the ignored fields.
    Raises InvalidRequest if the content is not a JSON object.
    """
    try:
        body = from_json(content)
    except ValueError:
        raise InvalidRequest.of("body", "is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest.of("body", "is not an object")
    return tolerance.without_effect(body)


def validated(kind: type[Parsed], body: Json, words: Mapping[str, str] = UNCHANGED) -> Parsed:
    """Validate a body against the class `kind`. Raises InvalidRequest, which names every invalid
    field but quotes no value. `words` maps field names of `kind` to the names that the client used.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise with_field_names(InvalidRequest(*_violations(error)), words) from None


def parsed(kind: type[Parsed], content: bytes) -> tuple[Parsed, tuple[str, ...]]:
    """Parse and validate a body. Returns the body and the names of its ignored fields."""
    left, ignored = read(content)
    return validated(kind, left), ignored


def with_field_names(error: InvalidRequest, words: Mapping[str, str]) -> InvalidRequest:
    """Return the error with the first component of each field name translated by `words`."""

    def word(field: str) -> str:
        first = re.split(r"[.\[]", field, maxsplit=1)[0]
        return words.get(first, first) + field[len(first) :]

    return InvalidRequest(*(replace(each, field=word(each.field)) for each in error.violations))


def _violations(error: ValidationError) -> Iterator[Violation]:
    if error.error_count() > MAX_MISTAKES:
        yield Violation("body", f"has {error.error_count()} mistakes")
        return
    # keep only the most deeply nested error: a union type reports an error for each of its members
    deepest: dict[str, Violation] = {}
    for found in error.errors(include_url=False, include_input=False):
        kind, path = found["type"], _path(found["loc"])
        field = next((each for each in deepest if path.startswith((f"{each}[", f"{each}."))), "")
        problem = MISTAKES.get(kind) or f"is wrong: {found['msg']}"
        if kind == "extra_forbidden" and path in tolerance.NEUTRAL:
            problem = f"is supported only with {tolerance.accepted(path)}"
        deepest.pop(field, None)
        deepest.setdefault(path, Violation(path, problem))
    yield from deepest.values()


def _path(location: tuple[int | str, ...]) -> str:
    """Format the location of an invalid value, like `messages[0].content`. Names of union members,
    which Pydantic adds to locations, are left out.
    """
    first, *others = location or ("body",)
    path = str(first)[:MAX_NAME_LENGTH]
    for part in others:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part != "str":
            path += f".{part[:MAX_NAME_LENGTH]}"
    return path
