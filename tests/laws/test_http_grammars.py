"""Grammars in HTTP requests, in the fields of OpenAI and of vLLM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.orchestrator.http.bodies.decoding import renamed
from tandem.orchestrator.http.bodies.parsing import parsed
from tandem.orchestrator.http.bodies.schema import ChatBody
from tandem.protos.errors import InvalidRequest
from tandem.protos.grammar import Grammar, GrammarKind
from tests.laws.test_http_decoding import HELLO, of_chat, of_completion

SCHEMA = {"type": "object", "properties": {"a": {"const": None}}}
BY_SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
OF_OPENAI = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
GRAMMARS: tuple[tuple[dict[str, Any], Grammar | None], ...] = (
    ({"response_format": OF_OPENAI}, BY_SCHEMA),
    ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_OBJECT)),
    ({"response_format": {"type": "text", "json_schema": None}}, None),
    ({"structured_outputs": {"json": SCHEMA}}, BY_SCHEMA),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, BY_SCHEMA),
    ({"structured_outputs": {"json_object": True}}, Grammar(GrammarKind.JSON_OBJECT)),
    ({"structured_outputs": {"regex": "a+"}}, Grammar(GrammarKind.REGEX, "a+")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar.choice(["a", "b"])),
    ({"structured_outputs": {"grammar": "start: b"}}, Grammar(GrammarKind.LARK, "start: b")),
    ({"guided_json": SCHEMA}, BY_SCHEMA),
    ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
    ({"guided_choice": ["a"]}, Grammar.choice(["a"])),
    ({"guided_grammar": "start: b"}, Grammar(GrammarKind.LARK, "start: b")),
)


@pytest.mark.parametrize("of", [of_completion, of_chat])
@pytest.mark.parametrize(("fields", "grammar"), GRAMMARS)
def test_a_grammar_arrives_by_any_of_its_names(
    of: Any, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    assert of(**fields).sampling.grammar == grammar


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": OF_OPENAI | {"type": "text"}}, "response_format.json_schema"),
    ],
)
def test_a_grammar_that_is_not_one_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        of_completion(**fields)
    assert [each.field for each in refusal.value.violations] == [field]


def test_what_is_wrong_with_a_grammar_is_said_of_the_clients_own_field() -> None:
    body = parsed(
        ChatBody, json.dumps({"messages": [HELLO], "response_format": OF_OPENAI}).encode()
    )
    error = renamed(InvalidRequest.of(BY_SCHEMA.field, "has not"), body[0])
    assert str(error) == "response_format.json_schema.schema has not"
