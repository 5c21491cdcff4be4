"""An answer on its way to a client: at once, or as server-sent events while it grows.

Generates as long as the client is connected and reads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.http.decoding import renamed
from tandem.orchestrator.http.errors import body_of
from tandem.orchestrator.http.replies import Json, Reply
from tandem.orchestrator.http.schema import GenerationBody
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.request import Request
from tandem.protos.errors import DeadlineExceeded, Internal, InvalidRequest, TandemError
from tandem.protos.service.drain import Drain

MUTE_SECONDS = 60.0  # that a client may read nothing
QUIET = 20  # events without a token, a quarter of a second each, until a comment is sent
BODY = "http.response.body"
COMMENT, DONE = b": alive\n\n", b"data: [DONE]\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

log = structlog.get_logger()


class ReadsNothing(DeadlineExceeded):
    """A client."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """What all protocols share; `serving` is whether requests can be served now."""

    answers: Answers
    drain: Drain
    ends: RequestLog
    serving: Callable[[], bool]


@dataclass
class Delivery:
    """The response to one request; called by the server."""

    frontend: Frontend
    body: GenerationBody
    request: Request
    reply: Reply
    _started: bool = field(default=False, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises what goes wrong before the first event; after it, it is an event. A client that
        leaves is no error.
        """
        try:
            await unless_disconnected(receive, self._deliver(scope, receive, send))
        except (ClientDisconnect, ReadsNothing):
            pass
        except Exception as error:
            if isinstance(error, InvalidRequest):
                error = renamed(error, self.body)
            if not self._started:
                raise error from None
            await _send(send, type=BODY, body=_event(body_of(_known(error))), more_body=False)

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        front = self.frontend
        with front.ends.logged(self.request) as course:
            generated = aclosing(front.answers.generate(self.request, course))
            async with front.drain.running(), generated as events:
                if self.body.stream:
                    await self._stream(events, send)
                    return
                answers = [event async for event in events if isinstance(event, Answer)]
        await JSONResponse(self.reply.whole(answers[-1]))(scope, receive, send)

    async def _stream(self, events: AsyncIterator[Chunk | Answer | None], send: Send) -> None:
        async for content in self._events(events):
            if not self._started:
                self._started = True
                await _send(send, type="http.response.start", status=200, headers=HEADERS)
            await _send(send, type=BODY, body=content, more_body=True)
        await _send(send, type=BODY, body=b"", more_body=False)

    async def _events(self, events: AsyncIterator[Chunk | Answer | None]) -> AsyncIterator[bytes]:
        """What is sent; empty at first, if there is nothing yet."""
        quiet, begun = 0, False
        async for event in events:
            pieces = [] if event is None else list(self._pieces(event))
            if not begun and event is not None:
                pieces, begun = [*self.reply.begun(), *pieces], True
            if not pieces:
                quiet += 1
                yield b"" if quiet % QUIET else COMMENT
                continue
            yield b"".join(map(_event, pieces)) + (DONE if isinstance(event, Answer) else b"")

    def _pieces(self, event: Chunk | Answer) -> Iterator[Json]:
        if isinstance(event, Chunk):
            yield from self.reply.chunk(event)
        else:
            yield from self.reply.ended(event)


def _known(error: Exception) -> TandemError:
    if isinstance(error, TandemError):
        return error
    log.error("a call failed", exc_info=error)
    return Internal("internal error; see the server's log")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do it as long as the client is connected; raises ClientDisconnect, or what it raises."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _send(send: Send, **message: Any) -> None:
    """Raises ReadsNothing if that lasts for too long."""
    try:
        async with asyncio.timeout(MUTE_SECONDS):
            await send(message)
    except TimeoutError:
        raise ReadsNothing(f"the client read nothing for {MUTE_SECONDS:g} s") from None


def _event(content: Json) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
