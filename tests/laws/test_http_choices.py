"""How many answers a body asks for, and how they are drafted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem.orchestrator.http.bodies.decoding import chats, completions
from tandem.orchestrator.http.bodies.parsing import parsed
from tandem.orchestrator.http.bodies.parts import MAX_INT64
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody
from tandem.orchestrator.requests.request import Speculation
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import Method, Rule, Schedule
from tests.laws.test_http_decoding import CALLER, HELLO, of_chat, of_completion, refused


def test_every_choice_is_a_request_with_a_seed_and_an_id_of_its_own() -> None:
    body = {"prompt": ["Hello", "World"], "n": 2, "seed": MAX_INT64}
    asked = completions(parsed(CompletionBody, json.dumps(body).encode())[0], CALLER)
    assert [each.prompt for each in asked] == ["Hello", "Hello", "World", "World"]
    assert [each.sampling.seed for each in asked] == [MAX_INT64, 0, MAX_INT64, 0]
    assert [each.request_id for each in asked] == ["id-1", "id-1-1", "id-1-2", "id-1-3"]
    (first, second) = chats(
        parsed(ChatBody, json.dumps({"messages": [HELLO], "n": 2}).encode())[0], CALLER
    )
    assert first == replace(second, request_id="id-1") == of_chat()
    with pytest.raises(InvalidRequest, match="prompt has 43 prompts with n = 3, above 128 choices"):
        of_completion(prompt=["a"] * 43, n=3)
    assert refused({"prompt": "a", "n": 129})[0].field == "n"


@pytest.mark.parametrize("content", ["Hi there", [{"type": "text", "text": "Hi there"}]])
def test_a_prediction_is_looked_up_in(content: Any) -> None:
    asked = of_chat(prediction={"type": "content", "content": content})
    assert asked.speculation == Speculation(prediction="Hi there")
    assert asked.speculation.drafted_by is None, "beside the usual drafts"
    waiting = replace(asked.speculation, rule=Rule.REJECT)
    assert waiting.drafted_by is Method.SUFFIX, "not looked up where steps wait for a drafter"


def test_speculation_is_asked_for_as_over_grpc() -> None:
    given = {"rule": "top1", "method": "ngram", "schedule": "constant", "branches": 2}
    asked = of_completion(speculation=given | {"num_speculative_tokens": 0, "prediction": "Hi"})
    assert asked.speculation == Speculation(
        Rule.TOP1, 0, 2, method=Method.SUFFIX, schedule=Schedule.CONSTANT, prediction="Hi"
    )
    assert of_chat(speculation={}).speculation == of_chat().speculation == Speculation()
    (wrong,) = refused({"prompt": "Hello", "speculation": {"method": "magic"}})
    assert wrong.field == "speculation.method"
