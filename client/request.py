"""A request from Python values: one keyword for every option of the client API."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, cast

from tandem.protos.errors import InvalidRequest
from tandem.protos.types import SEEDS
from tandem.protos.wire.options import options, put
from tandem.v1 import orchestrator_pb2 as api

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]  # the last with role, content
Tools: TypeAlias = Sequence[Mapping[str, Any]]  # as OpenAI's API has them
TOLD = ("logprobs", "prompt_logprobs", "echo", "return_token_ids")  # fields of the request itself


def build(prompt: Prompt, tools: Tools = (), **given: Any) -> api.GenerateRequest:
    """A request that can be sent again: with an id and a seed. Options that are None are absent;
    raises TypeError for an option that there is not, InvalidRequest for one that is no value of its
    field.
    """
    request = api.GenerateRequest(request_id=secrets.token_hex(8))
    if isinstance(prompt, str):
        request.text = prompt
    elif prompt and isinstance(prompt[0], Mapping):
        _put_messages(request, prompt, tools)
    else:
        request.token_ids.ids.extend(cast("Sequence[int]", prompt))
    for name in TOLD:
        if (value := given.pop(name, None)) is not None:
            _put_own(request, name, value)
    request.sampling.seed = secrets.randbelow(SEEDS)
    known = options()
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, [*known, *TOLD], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")
        if value is not None:
            put(request, name, value)
    return request


def _put_own(request: api.GenerateRequest, name: str, value: Any) -> None:
    try:
        setattr(request, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest.of(name, f"cannot be {value!r}") from error


def _put_messages(request: api.GenerateRequest, messages: Sequence[Any], tools: Tools) -> None:
    for place, each in enumerate(messages):
        try:
            request.messages.messages.add(**each)
        except (ValueError, TypeError) as error:
            fields = ", ".join(api.ChatMessage.DESCRIPTOR.fields_by_name)
            raise InvalidRequest.of(f"messages[{place}]", f"is not made of {fields}") from error
    for place, tool in enumerate(tools):
        function = dict(tool.get("function", tool))
        schema = json.dumps(found) if (found := function.pop("parameters", None)) else ""
        try:
            request.messages.tools.add(**function, parameters=schema)
        except (ValueError, TypeError) as error:
            problem = "is not made of name, description and parameters"
            raise InvalidRequest.of(f"tools[{place}]", problem) from error
