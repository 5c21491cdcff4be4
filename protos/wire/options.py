"""Finds and sets the options of a request by name. The options are the fields of the messages
Sampling, Stopping and Speculation.

The list of options is read from the protobuf descriptors, so that no option is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tandem.protos.errors import InvalidRequest
from tandem.v1 import orchestrator_pb2 as api

GROUPS = ("sampling", "stopping", "speculation")


def options() -> dict[str, tuple[str, FieldDescriptor]]:
    """Return a map from the name of every option to its group and its field."""
    messages = ((group, getattr(api.GenerateRequest(), group).DESCRIPTOR) for group in GROUPS)
    return {field.name: (group, field) for group, message in messages for field in message.fields}


def put(request: api.GenerateRequest, name: str, value: Any) -> None:
    """Set an option; raises InvalidRequest if the value does not fit its field. A map field accepts
    a dict. An enum field accepts a number, or the last part of a value's name. A list field also
    accepts a single string. A string field also accepts a dict, which is converted to JSON.
    """
    group, field = options()[name]
    try:
        _put(getattr(request, group), field, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest.of(f"{group}.{name}", f"cannot be {value!r}") from error


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.type == FieldDescriptor.TYPE_MESSAGE and field.is_repeated:  # a map
        getattr(message, field.name).update(value)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:  # a list inside an oneof, wrapped in a message
        assert field.message_type is not None
        (texts,) = field.message_type.fields
        _put(getattr(message, field.name), texts, value)
    elif field.type == FieldDescriptor.TYPE_STRING and isinstance(value, Mapping):
        setattr(message, field.name, json.dumps(value))
    elif field.type == FieldDescriptor.TYPE_ENUM and isinstance(value, str):
        assert field.enum_type is not None
        # the first value is named after the common prefix: PREFIX_UNSPECIFIED
        prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
        number = field.enum_type.values_by_name[prefix + value.upper()].number
        setattr(message, field.name, number)
    elif field.is_repeated:
        getattr(message, field.name).extend([value] if isinstance(value, str) else value)
    else:
        setattr(message, field.name, value)
