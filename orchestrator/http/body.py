"""The body of a request, as long as it is neither too long nor too slow."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from tandem.protos.errors import InvalidRequest

MAX_BYTES = 4 << 20
SECONDS = 60.0
JSON = "application/json"


class BodyTooLarge(InvalidRequest):
    """More than is read."""


class NotJson(InvalidRequest):
    """Of another type, which a page of any site could have a browser send."""


async def read_body(request: Request) -> bytes:
    """All of it. Raises NotJson, BodyTooLarge, or InvalidRequest if it does not come."""
    content = bytearray()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise NotJson.of("content-type", f"is not {JSON}")
    if int(request.headers.get("content-length", 0)) > MAX_BYTES:
        raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
    try:
        async with asyncio.timeout(SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > MAX_BYTES:
                    raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
    except TimeoutError:
        raise InvalidRequest.of("body", f"did not come within {SECONDS:g} s") from None
    return bytes(content)
