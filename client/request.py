"""A request from Python values: one keyword for every option of the client API.

Taken from the API's own description, so that none is forgotten.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tandem.protos.errors import InvalidRequest
from tandem.v1 import orchestrator_pb2 as api

GROUPS = ("sampling", "stopping", "speculation")
LARGEST_SEED = 1 << 53  # JSON's numbers are exact below it


def options() -> dict[str, tuple[str, FieldDescriptor]]:
    """Every option: its group, and its field there."""
    messages = ((group, getattr(api.GenerateRequest(), group).DESCRIPTOR) for group in GROUPS)
    return {field.name: (group, field) for group, message in messages for field in message.fields}


def build(prompt: str | Sequence[int], logprobs: int | None, **given: Any) -> api.GenerateRequest:
    """A request that can be sent again: with an id and a seed. Options that are None are absent;
    raises TypeError for an option that there is not, InvalidRequest for one that is no value of its
    field.
    """
    request = api.GenerateRequest(request_id=secrets.token_hex(8), logprobs=logprobs)
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    request.sampling.seed = secrets.randbelow(LARGEST_SEED)
    known = options()
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"there is no option {name!r}{hint}")
        group, field = known[name]
        if value is not None:
            try:
                _set(getattr(request, group), field, value)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidRequest.of(f"{group}.{name}", f"cannot be {value!r}") from error
    return request


def _set(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE:  # a map
        getattr(message, field.name).update(value)
    elif field.type == FieldDescriptor.TYPE_ENUM and isinstance(value, str):
        assert field.enum_type is not None
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        number = field.enum_type.values_by_name[prefix + value.upper()].number
        setattr(message, field.name, number)
    elif field.is_repeated:
        getattr(message, field.name).extend([value] if isinstance(value, str) else value)
    else:
        setattr(message, field.name, value)
