"""Find the grammar that a request body sets for the answer, in OpenAI's or in vLLM's fields.

The module is pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tandem.orchestrator.http.bodies.parts import ResponseFormat, StructuredOutputs
from tandem.orchestrator.http.bodies.schema import GenerationBody
from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import Grammar, GrammarKind

OLDER = {"json_": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def grammar_of(body: GenerationBody) -> tuple[Grammar | None, str]:
    """Return the grammar that a body requests, and the name of the field that contains it. Returns
    None and "" if the body requests no grammar. Raises InvalidRequest if several fields give a
    grammar.
    """
    found = [*_asked_for(body)]
    if len(found) > 1:
        raise InvalidRequest.of(found[1][1], f"cannot be combined with {found[0][1]}")
    return found[0] if found else (None, "")


def _asked_for(body: GenerationBody) -> Iterator[tuple[Grammar, str]]:
    if body.response_format:
        yield from _of_format(body.response_format)
    if body.structured_outputs:
        yield from _of_outputs(body.structured_outputs, "structured_outputs.")
    older = {name: getattr(body, f"guided_{known}") for name, known in OLDER.items()}
    yield from _of_outputs(StructuredOutputs.model_construct(**older), "guided_")


def _of_format(asked: ResponseFormat) -> Iterator[tuple[Grammar, str]]:
    field = "response_format.json_schema"
    if asked.type == "json_schema":
        if asked.json_schema is None:
            raise InvalidRequest.of(field, "is missing")
        yield _schema(asked.json_schema.schema_), f"{field}.schema"
    elif asked.json_schema:
        raise InvalidRequest.of(field, f"cannot be combined with the type {asked.type}")
    elif asked.type == "json_object":
        yield Grammar(GrammarKind.JSON_OBJECT), "response_format"


def _of_outputs(asked: StructuredOutputs, field: str) -> Iterator[tuple[Grammar, str]]:
    if asked.json_ is not None:
        yield _schema(asked.json_), f"{field}json"
    if asked.json_object:
        yield Grammar(GrammarKind.JSON_OBJECT), f"{field}json_object"
    if asked.regex is not None:
        yield Grammar(GrammarKind.REGEX, asked.regex), f"{field}regex"
    if asked.choice is not None:
        yield Grammar.choice(asked.choice), f"{field}choice"
    if asked.grammar is not None:
        yield Grammar(GrammarKind.LARK, asked.grammar), f"{field}grammar"


def _schema(schema: str | dict[str, Any]) -> Grammar:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return Grammar(GrammarKind.JSON_SCHEMA, text)
