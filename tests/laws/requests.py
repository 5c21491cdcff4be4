"""Requests for a tiny model, and the runs that they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tandem.orchestrator.frontend.messages import decode_request
from tandem.orchestrator.requests.checks import ServedModel, checked
from tandem.orchestrator.rounds.generation import RunRequest
from tandem.protos.errors import InvalidRequest
from tandem.protos.types import DraftShape, ModelDescription, Schedule
from tandem.v1 import orchestrator_pb2 as api

MODEL = ModelDescription("tiny", "f" * 16, 100, 50, (0, 7), "cpu", "float32")
SHAPE = DraftShape(6, 4, 16, schedule=Schedule.GOODPUT)
SERVED = ServedModel(MODEL, SHAPE, 1000, {"<|end|>": 42})


def tokenise(text: str) -> tuple[int, ...]:
    """Make one token of each character."""
    return tuple(ord(letter) % 100 for letter in text)


def run_of(
    request: api.GenerateRequest,
    served: ServedModel = SERVED,
    tokenise: Callable[[str], tuple[int, ...]] = tokenise,
) -> RunRequest:
    """Return the run that a request becomes."""
    return checked(decode_request(request), served, tokenise)


def ask(**fields: Any) -> api.GenerateRequest:
    """Return a valid request with these fields changed."""
    if not {"text", "token_ids"} & fields.keys():
        fields["text"] = "abc"
    return api.GenerateRequest(**fields)


def violations(request: api.GenerateRequest) -> dict[str, str]:
    """Return the fields and problems of a refused request."""
    with pytest.raises(InvalidRequest) as refused:
        run_of(request)
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
    """Return a request whose prompt is token ids."""
    return ask(token_ids=api.TokenIds(ids=tokens))
