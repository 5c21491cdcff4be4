"""Read the bodies of HTTP requests. Limits apply to the size of a body, to the time until it has
arrived, and to the total size of the bodies in memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from tandem.protos.errors import Busy, InvalidRequest

MAX_BYTES = 4 << 20
MAX_BYTES_HELD = 64 << 20
OWNER_FRACTION = 0.25  # fraction of MAX_BYTES_HELD for the bodies of one client
RETRY_SECONDS = 1.0
READ_SECONDS = 60.0
JSON = "application/json"


class BodyTooLarge(InvalidRequest):
    """The body has more than MAX_BYTES bytes."""


class NotJson(InvalidRequest):
    """The body's content type is not JSON. Content types other than JSON are refused, because any
    website can make a browser send them to this port.
    """


@dataclass(slots=True)
class BodyReader:
    """Reads request bodies, and counts the bytes of the bodies in memory. All bodies together may
    have `max_bytes` bytes. The bodies of one client may use at most the fraction OWNER_FRACTION of
    `max_bytes`.
    """

    max_bytes: int = MAX_BYTES_HELD
    held: Counter[str] = field(default_factory=Counter)  # bytes in memory per client

    @asynccontextmanager
    async def read(self, request: Request, owner: str) -> AsyncIterator[bytes]:
        """Read the body of a request, and count its bytes as memory in use until this context ends.
        Raises NotJson if the content type is not JSON, BodyTooLarge if the body is too large, Busy
        if too many bytes are in memory, and InvalidRequest if the body does not arrive in time.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != JSON:
            raise NotJson.of("content-type", f"is not {JSON}")
        if int(request.headers.get("content-length", 0)) > MAX_BYTES:
            raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
        content = bytearray()
        try:
            await self._fill(content, request, owner)
            yield bytes(content)
        finally:
            self.held[owner] -= len(content)
            if not self.held[owner]:
                del self.held[owner]

    async def _fill(self, content: bytearray, request: Request, owner: str) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for piece in request.stream():
                    content += piece
                    self.held[owner] += len(piece)
                    if len(content) > MAX_BYTES:
                        raise BodyTooLarge.of("body", f"has more than {MAX_BYTES} bytes")
                    self._check(owner)
        except TimeoutError:
            raise InvalidRequest.of("body", f"did not arrive within {READ_SECONDS:g} s") from None

    def _check(self, owner: str) -> None:
        own, total = self.held[owner], self.held.total()
        share = int(OWNER_FRACTION * self.max_bytes)
        if own > share:
            problem = f"request bodies of this client have {own} bytes, above its share of {share}"
            raise Busy(problem, RETRY_SECONDS)
        if total > self.max_bytes:
            problem = f"request bodies of all clients have {total} bytes, above {self.max_bytes}"
            raise Busy(problem, RETRY_SECONDS)
