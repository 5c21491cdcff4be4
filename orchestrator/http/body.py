"""The bodies of requests: neither too long nor too slow, and not too many bytes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from tandem.protos.errors import Busy, InvalidRequest

MAX_BYTES = 4 << 20
MAX_BYTES_HELD = 64 << 20
RETRY_SECONDS = 1.0
SECONDS = 60.0
JSON = "application/json"


class BodyTooLarge(InvalidRequest):
    """More than is read."""


class NotJson(InvalidRequest):
    """Of another type, which a page of any site could have a browser send."""


@dataclass(slots=True)
class Bodies:
    """All that are held now, with at most so many bytes together."""

    most: int = MAX_BYTES_HELD
    held: int = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """A body, held while the scope lasts. Raises NotJson, BodyTooLarge, Busy if others have too
        many bytes, or InvalidRequest if it does not come.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise NotJson.of("content-type", f"is not {JSON}")
        if int(request.headers.get("content-length", 0)) > MAX_BYTES:
            raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
        content = bytearray()
        try:
            await self._fill(content, request)
            yield bytes(content)
        finally:
            self.held -= len(content)

    async def _fill(self, content: bytearray, request: Request) -> None:
        try:
            async with asyncio.timeout(SECONDS):
                async for piece in request.stream():
                    content += piece
                    self.held += len(piece)
                    if len(content) > MAX_BYTES:
                        raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
                    if self.held > self.most:
                        raise Busy(f"bodies of {self.most} bytes are being read", RETRY_SECONDS)
        except TimeoutError:
            raise InvalidRequest.of("body", f"did not come within {SECONDS:g} s") from None
