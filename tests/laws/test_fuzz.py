"""Generated requests reach every method and every field; the same seed gives the same requests."""

from __future__ import annotations

import json
from random import Random

from google.protobuf.message import DecodeError

from tandem.benchmarks.fuzz.bodies import VALID, body
from tandem.benchmarks.fuzz.calls import Method, methods
from tandem.v1 import orchestrator_pb2 as api

REQUESTS = 3000


def generate() -> Method:
    return next(method for method in methods() if method.path.endswith("/Generate"))


def test_every_method_of_every_service_is_asked_the_same_with_a_seed() -> None:
    found = {method.path.rpartition(".")[2]: method for method in methods()}
    assert found["VerifierService/Decode"].takes_stream
    assert not found["OrchestratorService/Generate"].gives_stream
    method = generate()
    assert method.messages(Random("1")) == method.messages(Random("1"))
    assert method.messages(Random("1")) != method.messages(Random("2"))


def test_every_field_of_a_request_is_changed_and_many_can_be_served() -> None:
    method, rng = generate(), Random(0)
    changed, decoded = set[str](), 0
    for _ in range(REQUESTS):
        request = api.GenerateRequest()
        try:
            request.MergeFromString(method.messages(rng)[0])
        except DecodeError:
            continue
        decoded += 1
        for field, value in request.ListFields():
            changed.add(field.name)
            if field.message_type and not field.is_repeated:
                changed |= {f"{field.name}.{inner.name}" for inner, _ in value.ListFields()}
    names = {field.name for field in api.GenerateRequest.DESCRIPTOR.fields}
    names |= {f"sampling.{field.name}" for field in api.Sampling.DESCRIPTOR.fields}
    names |= {f"messages.{field.name}" for field in api.Messages.DESCRIPTOR.fields}
    assert names <= changed and decoded > REQUESTS * 0.9


def test_every_field_of_a_body_is_changed() -> None:
    rng = Random(0)
    for path, (fields, _) in VALID.items():
        seen = set[str]()
        for _ in range(REQUESTS):
            try:
                content = json.loads(body(path, rng))
            except (ValueError, RecursionError):
                continue
            seen |= content.keys() if isinstance(content, dict) else set()
        assert set(fields) <= seen
