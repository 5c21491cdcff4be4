"""Answers with a grammar through the whole system always match it, and are the same with any
drafts.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError
from jsonschema import validate

from tandem.v1 import orchestrator_pb2 as api
from tests.schemas import drawn_object
from tests.served import Tandem

PLAIN = api.Speculation(num_speculative_tokens=0)
WAYS = (
    PLAIN,
    api.Speculation(),
    api.Speculation(method=api.DRAFT_METHOD_NGRAM),
    api.Speculation(method=api.DRAFT_METHOD_MEDUSA_LITE, branches=4, num_speculative_tokens=4),
)
GRAMMARS: dict[str, dict[str, Any]] = {
    "json_object": {"json_object": True},
    "regex": {"regex": r"(the|a) (cat|dog)( sat)? on the mat\."},
    "choice": {"choice": api.Choice(texts=["yes", "no", 'perhaps "not"'])},
    "lark": {"lark": 'start: "[" n ("," n)* "]"\nn: /[0-9]+/'},
}
OF = {
    "json_object": r"\{.*",
    "regex": GRAMMARS["regex"]["regex"],
    "choice": 'yes|no|perhaps "not"',
    "lark": r"\[[0-9,]*\]?",
}
HOSTILE = {
    "json_schema": json.dumps(
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(1, 30)]}
    ),
    "regex": "(a{1000}){1000}",
    "lark": "start: " + "(" * 2000 + '"a"' + ")" * 2000,
}

pytestmark = pytest.mark.usefixtures("nothing_left")


def ask(
    grammar: dict[str, Any], temperature: float, speculation: api.Speculation, tokens: int = 60
) -> api.GenerateRequest:
    return api.GenerateRequest(
        text="Once upon a time there was",
        sampling=api.Sampling(temperature=temperature, seed=7, **grammar),
        stopping=api.Stopping(max_new_tokens=tokens),
        speculation=speculation,
    )


async def refused(tandem: Tandem, grammar: dict[str, Any]) -> str:
    with pytest.raises(AioRpcError) as refusal:
        await tandem.stub.Generate(ask(grammar, 0.0, PLAIN))
    assert refusal.value.code() is StatusCode.INVALID_ARGUMENT
    return str(refusal.value.details())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answers_are_valid_by_their_schemas_and_the_same_from_any_drafts(
    tandem: Tandem, temperature: float
) -> None:
    rng = random.Random(temperature)
    for schema in [drawn_object(rng) for _ in range(3)]:
        grammar = {"json_schema": json.dumps(schema)}
        asked = (ask(grammar, temperature, way, 300) for way in WAYS)
        plain, *drafted = await asyncio.gather(*map(tandem.stub.Generate, asked))
        assert plain.finish_reason == api.FINISH_REASON_STOP
        validate(json.loads(plain.text), schema)
        for answer in drafted:
            assert answer.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("kind", "temperature"), list(zip(GRAMMARS, (0.0, 1.0, 1.0, 0.0), strict=True))
)
async def test_every_kind_of_grammar_is_kept_to_from_any_drafts(
    tandem: Tandem, kind: str, temperature: float
) -> None:
    asked = (ask(GRAMMARS[kind], temperature, way, 30) for way in WAYS)
    plain, *drafted = await asyncio.gather(*map(tandem.stub.Generate, asked))
    assert re.fullmatch(OF[kind], plain.text, re.DOTALL)
    for answer in drafted:
        assert answer.token_ids == plain.token_ids


@pytest.mark.parametrize("rule", [api.ACCEPTANCE_RULE_REJECT, api.ACCEPTANCE_RULE_TOP1])
async def test_other_rules_keep_to_a_grammar_too(
    tandem: Tandem, rule: api.AcceptanceRule.ValueType
) -> None:
    answer = await tandem.stub.Generate(ask(GRAMMARS["regex"], 1.0, api.Speculation(rule=rule)))
    assert re.fullmatch(OF["regex"], answer.text)


async def test_what_a_grammar_leaves_no_choice_about_takes_fewer_steps(tandem: Tandem) -> None:
    """Only the verifier's own drafts are used while the steps are counted."""
    names = ["first name", "last name", "favourite colour"]
    fixed = {"type": "object", "properties": {name: {"enum": ["abc"]} for name in names}}
    closed = {"required": names, "additionalProperties": False}
    grammar = {"json_schema": json.dumps(fixed | closed)}
    way = api.Speculation(method=api.DRAFT_METHOD_NGRAM)
    answer = await tandem.stub.Generate(ask(grammar, 1.0, way, 99))
    assert json.loads(answer.text) == dict.fromkeys(names, "abc")
    assert 4 * answer.speculation.num_spec_steps < len(answer.token_ids)


async def test_a_text_without_end_of_its_own_goes_on_to_the_limit_or_where_it_must_end(
    tandem: Tandem,
) -> None:
    endless, ending = ask({"regex": "(ab)+"}, 0.0, PLAIN, 20), ask(GRAMMARS["choice"], 0.0, PLAIN)
    for request in (endless, ending):
        request.stopping.ignore_eos = True
        request.stopping.min_new_tokens = 18
    longest, shortest = await tandem.stub.Generate(endless), await tandem.stub.Generate(ending)
    assert longest.finish_reason == api.FINISH_REASON_LENGTH and len(longest.token_ids) == 20
    assert shortest.finish_reason == api.FINISH_REASON_STOP


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_grammar_that_takes_too_long_is_refused_by_its_name_and_others_go_on(
    tandem: Tandem, kind: str
) -> None:
    fine = ask(GRAMMARS["regex"], 0.0, PLAIN)
    problem, answer = await asyncio.gather(
        refused(tandem, {kind: HOSTILE[kind]}), tandem.stub.Generate(fine)
    )
    assert problem.startswith(f"sampling.{kind} ")
    assert re.fullmatch(OF["regex"], answer.text)


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (
            {"json_schema": '{"properties": {"a": {"not": {}}}}'},
            "sampling.json_schema has not at #/properties/a, which is not supported",
        ),
        ({"json_schema": "[1"}, "sampling.json_schema cannot be used: "),
        ({"regex": "(a"}, "sampling.regex cannot be used: unclosed group"),
        ({"choice": api.Choice()}, "sampling.choice cannot be used: is not a list of texts"),
        ({"lark": "start: b"}, 'sampling.lark cannot be used: at 1(8): unknown name: "b"'),
        ({"lark": "start: a\na: b\nb: a"}, "sampling.lark admits no text"),
        ({"regex": "a" * 65537}, "sampling.regex has 65537 bytes, above 65536"),
    ],
)
async def test_what_is_wrong_with_a_grammar_is_said(
    tandem: Tandem, grammar: dict[str, Any], problem: str
) -> None:
    assert problem in await refused(tandem, grammar)


async def test_a_continued_answer_keeps_to_its_grammar(tandem: Tandem) -> None:
    request = ask(GRAMMARS["regex"], 1.0, PLAIN)
    whole = await tandem.stub.Generate(request)
    received = whole.token_ids[:4]
    again = api.StreamGenerateRequest(request=request, received=received)
    *_, last = [event async for event in tandem.stub.StreamGenerate(again)]
    assert last.complete.token_ids == whole.token_ids
    wrong = api.StreamGenerateRequest(request=request, received=[5, 6])
    with pytest.raises(AioRpcError, match=r"received is not what sampling\.regex allows"):
        [event async for event in tandem.stub.StreamGenerate(wrong)]
