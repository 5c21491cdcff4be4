"""Where a field is that is wrong, in the words of the message that a client has sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import wraps
from typing import ParamSpec, TypeVar

from tandem.protos.errors import InvalidRequest, Violation

OWN = ("resume_from", "received")  # of a StreamGenerateRequest itself
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def with_stream_paths(
    handler: Callable[Arguments, Awaitable[Result]],
) -> Callable[Arguments, Awaitable[Result]]:
    """The handler of a stream: other fields are those of its `request`."""

    @wraps(handler)
    async def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        try:
            return await handler(*arguments, **named)
        except InvalidRequest as error:
            raise InvalidRequest(*map(_inside, error.violations)) from None

    return call


def _inside(violation: Violation) -> Violation:
    if violation.field in OWN:
        return violation
    return replace(violation, field=f"request.{violation.field}")
