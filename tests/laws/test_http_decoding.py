"""HTTP bodies become the requests that gRPC would make of the same options; no field is ignored."""

from __future__ import annotations

import json
import struct
from itertools import product
from typing import Any

import pytest
from starlette.requests import Request as HttpRequest

from tandem.orchestrator.frontend.messages import decode_request
from tandem.orchestrator.http.app import caller_of
from tandem.orchestrator.http.bodies.decoding import Caller, chats, completions, renamed
from tandem.orchestrator.http.bodies.parsing import parsed
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody
from tandem.orchestrator.requests.request import (
    CLIENT_KEY,
    ChatMessage,
    Conversation,
    Request,
    Sampling,
    scope_of,
)
from tandem.protos.errors import InvalidRequest, Violation
from tandem.v1.orchestrator_pb2 import GenerateRequest

CALLER = Caller(b"client", b"share", "id-1")
HELLO = {"role": "user", "content": "Hello"}


def of_completion(**fields: Any) -> Request:
    body = json.dumps({"prompt": "Hello"} | fields).encode()
    return completions(parsed(CompletionBody, body)[0], CALLER)[0]


def of_chat(**fields: Any) -> Request:
    body = json.dumps({"messages": [HELLO]} | fields).encode()
    return chats(parsed(ChatBody, body)[0], CALLER)[0]


def refused(body: bytes | dict[str, Any], kind: Any = CompletionBody) -> tuple[Violation, ...]:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(kind, body if isinstance(body, bytes) else json.dumps(body).encode())
    return refusal.value.violations


def test_a_prompt_alone_gets_the_defaults_of_openai() -> None:
    assert of_completion() == Request(
        "Hello", "id-1", cache_scope=b"client", client_id=b"share", default_new_tokens=16
    )
    conversation = Conversation((ChatMessage("user", "Hello"),))
    assert of_chat() == Request(
        conversation,
        "id-1",
        cache_scope=b"client",
        client_id=b"share",
        default_new_tokens=2**32 - 1,
    )


def test_every_option_arrives() -> None:
    request = of_completion(
        model="m",
        temperature=0.7,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=0.5,
        logit_bias={"7": 2, "3": -1},
        seed=2**64 - 1,
        stop=["a", "b"],
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=[4],
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=0,
        echo=True,
        return_token_ids=True,
    )
    drawn, stopping = request.sampling, request.stopping
    single = struct.unpack("<3f", struct.pack("<3f", 0.7, 0.9, 0.1))
    assert (drawn.temperature, drawn.top_p, drawn.min_p) == single, "as gRPC carries them"
    assert (drawn.top_k, drawn.seed, drawn.presence_penalty) == (5, 2**64 - 1, -1)
    assert drawn.logit_bias == ((3, -1), (7, 2))
    assert (stopping.max_new_tokens, stopping.min_new_tokens, stopping.ignore_eos) == (9, 2, True)
    assert (stopping.stop, stopping.stop_token_ids) == (("a", "b"), (4,))
    assert (request.model, request.logprobs, request.prompt_logprobs) == ("m", 3, 0)
    assert request.echo and request.return_token_ids and request.prompt_top_logprobs == 3
    assert of_completion(top_k=-1, stop="a").stopping.stop == ("a",)


def test_what_vllm_cannot_stream_is_refused_and_chats_are_not_echoed() -> None:
    with pytest.raises(InvalidRequest, match="prompt_logprobs cannot be combined with stream"):
        of_completion(prompt_logprobs=1, stream=True)
    assert of_completion(echo=True, logprobs=1, stream=True).prompt_top_logprobs == 1
    assert of_chat(echo=False) == of_chat()
    body = {"messages": [HELLO], "echo": True, "prompt_logprobs": -1}
    assert {each.field for each in refused(body, ChatBody)} == {"echo", "prompt_logprobs"}


def test_what_is_not_given_is_left_to_the_models_makers() -> None:
    assert of_completion().sampling == of_completion(temperature=None).sampling == Sampling()
    assert of_completion(top_k=-1).sampling == Sampling(top_k=0), "off, as vLLM has it"


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_token_ids_are_a_prompt_too(prompt: Any) -> None:
    assert of_completion(prompt=prompt).prompt == (1, 2)


@pytest.mark.parametrize(
    "prompt",
    [
        ["a", 1],
        ["a", None],
        [[1], [-1]],
        [1, "a"],
        [1, "2"],
        [-1],
        [2**32],
        [None],
        [[[1]]],
        [1.5],
        [3.0],
        [True],
    ],
)
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^prompt "):
        of_completion(prompt=prompt)


def test_a_cache_key_decides_about_the_cache_and_a_user_about_the_places() -> None:
    def caller(name: str = "", **fields: Any) -> Caller:
        headers = [(CLIENT_KEY.encode(), name.encode())] if name else []
        place = {"client": ("127.0.0.1", 9), "state": {"request_id": "id"}}
        asked = HttpRequest({"type": "http", "headers": headers} | place)
        return caller_of(asked, CompletionBody(prompt="a", **fields))

    nobody, a, b = caller(), caller(user="a"), caller(user="b")
    assert nobody.cache_scope == b"" and len({nobody.client_id, a.client_id, b.client_id}) == 3
    keyed = caller(user="a", prompt_cache_key="k")
    assert keyed.client_id == a.client_id and keyed.cache_scope and not a.cache_scope
    assert caller(prompt_cache_key="k").client_id == nobody.client_id
    assert caller("n", user="a", prompt_cache_key="k") == caller("n")
    salted = caller("n", cache_salt="s")
    unsalted = caller("n")
    assert salted.client_id == unsalted.client_id and salted.cache_scope != unsalted.cache_scope


def test_a_salt_keeps_the_cache_of_its_requests_apart_and_changes_no_client() -> None:
    found = set[bytes]()
    for metadata, salt in product((b"", b"n"), ("", "s", "t")):
        asked = decode_request(GenerateRequest(cache_salt=salt), metadata, "peer")
        found.add(asked.cache_scope)
        assert asked.client_id == decode_request(GenerateRequest(), metadata, "peer").client_id
        assert asked.cache_scope == scope_of(metadata, salt)
    assert len(found) == 6 and scope_of(b"", "") == b""


def test_no_value_stands_for_another() -> None:
    assert of_completion(logit_bias={"0": 1, "10": 2}, n=1).sampling.logit_bias == ((0, 1), (10, 2))
    for wrong in ({"logit_bias": {"1": 3, "01": -4}}, {"n": True}, {"best_of": True}):
        assert len(refused({"prompt": "a"} | wrong)) == 1


def test_logprobs_of_a_chat_are_asked_for_in_two_fields() -> None:
    assert of_chat().logprobs is None
    assert of_chat(logprobs=True).logprobs == 0
    assert of_chat(logprobs=True, top_logprobs=4).logprobs == 4
    with pytest.raises(InvalidRequest, match="top_logprobs needs logprobs"):
        of_chat(top_logprobs=4)


def test_the_limit_of_a_chat_has_two_names_that_must_agree() -> None:
    assert of_chat(max_completion_tokens=7).stopping.max_new_tokens == 7
    assert of_chat(max_tokens=7, max_completion_tokens=7).stopping.max_new_tokens == 7
    with pytest.raises(InvalidRequest, match="max_completion_tokens is 8, but max_tokens is 7"):
        of_chat(max_tokens=7, max_completion_tokens=8)


@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        (b"{", "body", "is not JSON"),
        (b'{"prompt": "\\ud800"}', "body", "is not JSON"),
        (b"[" * 100_000, "body", "is not JSON"),
        (b"[]", "body", "is not an object"),
        (b"{}", "prompt", "is missing"),
        ({"prompt": "", "x": 1}, "x", "is not supported"),
        ({"prompt": "", "temperature": "1"}, "temperature", "is wrong: "),
        ({"prompt": "", "temperature": 1e39}, "temperature", "is wrong: "),
        (b'{"prompt": "", "temperature": NaN}', "temperature", "is wrong: "),
        ({"prompt": "", "seed": -(2**63) - 1}, "seed", "is wrong: "),
        ({"prompt": "", "stop": [1]}, "stop[0]", "is wrong: "),
        ({"prompt": "", "max_tokens": 1.5}, "max_tokens", "is wrong: "),
        ({"prompt": "", "max_tokens": 2**32}, "max_tokens", "is wrong: "),
    ],
)
def test_a_bad_body_is_refused_by_its_field(
    body: bytes | dict[str, Any], field: str, problem: str
) -> None:
    first = refused(body)[0]
    assert first.field == field and first.problem.startswith(problem)


def test_a_flood_of_mistakes_is_one_problem() -> None:
    (flood,) = refused({str(place): 0 for place in range(5000)})
    assert (flood.field, flood.problem) == ("body", "has 5001 mistakes")
    (long,) = refused({"prompt": "", "stop_token_ids": ["x"] * 5000})
    assert long.field == "stop_token_ids[0]"


@pytest.mark.parametrize(
    ("kind", "body", "names"),
    [
        (CompletionBody, {"prompt": ""}, ["top_p", "max_tokens", "prompt", "logprobs"]),
        (
            ChatBody,
            {"messages": [HELLO], "max_completion_tokens": 5},
            ["top_p", "max_completion_tokens", "prompt", "top_logprobs"],
        ),
    ],
)
def test_a_refusal_uses_the_words_of_the_body(
    kind: Any, body: dict[str, Any], names: list[str]
) -> None:
    fields = (
        "sampling.top_p",
        "stopping.max_new_tokens",
        "text",
        "logprobs",
        "sampling.logit_bias[5]",
    )
    error = InvalidRequest(*(Violation(field, "is wrong") for field in fields))
    found = renamed(error, parsed(kind, json.dumps(body).encode())[0])
    assert [each.field for each in found.violations] == [*names, "logit_bias[5]"]
