"""Requests for a tiny model, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.frontend.request import Limits, order
from protos.errors import InvalidRequest
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import rounds_pb2
from protos.types import DraftShape, ModelDescription, Schedule

MODEL = ModelDescription("tiny", "f" * 16, 100, 50, (0, 7), "cpu", "float32")
SHAPE = DraftShape(6, 4, 16, schedule=Schedule.GOODPUT)
LIMITS = Limits(MODEL, SHAPE, 1000, {"<|end|>": 42})


def tokenise(text: str) -> list[int]:
    """A token a character."""
    return [ord(letter) % 100 for letter in text]


def ordered(request: api.GenerateRequest) -> rounds_pb2.RunRequest:
    """The order that a request makes."""
    return order(request, "id-1", LIMITS, tokenise)


def ask(**fields: Any) -> api.GenerateRequest:
    """A good request but for these fields."""
    if not {"text", "token_ids"} & fields.keys():
        fields["text"] = "abc"
    return api.GenerateRequest(**fields)


def violations(request: api.GenerateRequest) -> dict[str, str]:
    """Fields and problems of a refused request."""
    with pytest.raises(InvalidRequest) as refused:
        ordered(request)
    return {violation.field: violation.problem for violation in refused.value.violations}


def sampling(**fields: Any) -> api.GenerateRequest:
    """A request with these sampling fields."""
    return ask(sampling=api.Sampling(**fields))


def stopping(**fields: Any) -> api.GenerateRequest:
    """A request with these stopping fields."""
    return ask(stopping=api.Stopping(**fields))


def speculation(**fields: Any) -> api.GenerateRequest:
    """A request with these speculation fields."""
    return ask(speculation=api.Speculation(**fields))


def ids(*tokens: int) -> api.GenerateRequest:
    """A request of tokens."""
    return ask(token_ids=api.TokenIds(ids=tokens))
