"""Deliver an answer to a client, either whole or as server-sent events while the answer grows.

Generation stops if the client disconnects or stops reading.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.http.bodies.decoding import renamed
from tandem.orchestrator.http.bodies.parsing import with_field_names
from tandem.orchestrator.http.bodies.schema import GenerationBody
from tandem.orchestrator.http.errors import body_of
from tandem.orchestrator.http.logprobs import Json
from tandem.orchestrator.http.replies import Reply
from tandem.orchestrator.http.responses.reply import ResponsesReply
from tandem.orchestrator.requests.answer import Answer, Chunk
from tandem.orchestrator.requests.request import Request
from tandem.protos.errors import DeadlineExceeded, Internal, InvalidRequest, TandemError
from tandem.protos.service.drain import Drain
from tandem.protos.service.tasks import background

MUTE_SECONDS = 60.0  # seconds after which a client that reads nothing is disconnected
# A comment is sent after this many events without output per choice (4 events per second).
EVENTS_PER_COMMENT = 20
BODY = "http.response.body"
COMMENT = b": alive\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

log = structlog.get_logger()


class ReadsNothing(DeadlineExceeded):
    """The client has read nothing for MUTE_SECONDS."""


@dataclass(frozen=True, slots=True)
class Frontend:
    """The parts of the front end that gRPC and HTTP share. `serving` tells whether requests can be
    served now.
    """

    answers: Answers
    drain: Drain
    ends: RequestLog
    serving: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a response: the request that generates it, and the object that formats it."""

    request: Request
    reply: Reply | ResponsesReply


@dataclass
class Delivery:
    """The HTTP response to one request, which the server calls as an ASGI application. `choices`
    are in the order of the prompts in the request body.
    """

    frontend: Frontend
    body: GenerationBody
    choices: tuple[Choice, ...]
    # maps each field name of a chat body to the name that the client's body uses
    words: Mapping[str, str] = field(default_factory=dict)
    _started: bool = field(default=False, init=False)
    _quiet: int = field(default=0, init=False)  # number of events without output
    # complete answers, keyed by the index of the choice
    _answers: dict[int, Answer] = field(default_factory=dict, init=False)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send the response. An error that occurs before the first event is raised; a
        later error is sent as an event. It is not an error if the client disconnects.
        """
        try:
            await unless_disconnected(receive, self._deliver(scope, receive, send))
        except (ClientDisconnect, ReadsNothing):
            pass
        except Exception as error:
            if isinstance(error, InvalidRequest):
                error = with_field_names(renamed(error, self.body), self.words)
            if not self._started:
                raise error from None
            await _send(send, type=BODY, body=_event(body_of(_known(error))), more_body=False)

    async def _deliver(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate all choices and send them. The client's quota limits how many choices run at
        once.
        """
        quota = self.choices[0].request.quota
        places = asyncio.Semaphore(self.frontend.answers.admission.most_running(quota))
        async with background(*(self._run(each, places, send) for each in self.choices)) as tasks:
            await asyncio.wait(tasks)
        answers = [self._answers[index] for index in range(len(self.choices))]
        first, each = self.choices[0].reply, self.body.n or 1
        if self.body.stream:
            total = b"".join(map(_event, first.head.total(answers, each)))
            await _send(send, type=BODY, body=total + first.head.done, more_body=False)
            return
        pairs = zip(self.choices, answers, strict=True)
        whole = [choice.reply.whole(answer) for choice, answer in pairs]
        content = first.head.whole(whole, answers, each) | first.extras(answers[0])
        await JSONResponse(content)(scope, receive, send)

    async def _run(self, choice: Choice, places: asyncio.Semaphore, send: Send) -> None:
        front, begun = self.frontend, False
        with front.ends.logged(choice.request) as progress:
            generated = aclosing(front.answers.generate(choice.request, progress))
            async with front.drain.running(), places, generated as events:
                async for event in events:
                    if isinstance(event, Answer):
                        self._answers[choice.reply.index] = event
                    if self.body.stream:
                        await self._stream(choice.reply, event, begun, send)
                        begun |= event is not None

    async def _stream(
        self, reply: Reply | ResponsesReply, event: Chunk | Answer | None, begun: bool, send: Send
    ) -> None:
        """Send the output that a chunk or the complete answer adds to the stream. After a number of
        events without output, send a comment, which keeps the connection alive.
        """
        pieces = (
            []
            if event is None
            else [*(() if begun else reply.begun(event.prompt)), *_pieces(reply, event)]
        )
        content = b"".join(map(_event, pieces))
        if not content:
            self._quiet += 1
            content = b"" if self._quiet % (EVENTS_PER_COMMENT * len(self.choices)) else COMMENT
        async with self._sending:
            if not self._started:
                self._started = True
                await _send(send, type="http.response.start", status=200, headers=HEADERS)
            await _send(send, type=BODY, body=content, more_body=True)


def _pieces(reply: Reply | ResponsesReply, event: Chunk | Answer) -> Iterator[Json]:
    return reply.chunk(event) if isinstance(event, Chunk) else reply.ended(event)


def _known(error: Exception) -> TandemError:
    if isinstance(error, TandemError):
        return error
    log.error("a call failed", exc_info=error)
    return Internal("internal error; see the server's log")


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or the client disconnects. Raises ClientDisconnect if the client
    disconnects first, and any error of `work`.
    """

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
    """Send a message to the client. Raises ReadsNothing if the client does not accept the message
    within MUTE_SECONDS.
    """
    try:
        async with asyncio.timeout(MUTE_SECONDS):
            await send(message)
    except TimeoutError:
        raise ReadsNothing(f"the client read nothing for {MUTE_SECONDS:g} s") from None


def _event(content: Json) -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {content['type']}\n" if "type" in content else ""
    return f"{name}data: {text}\n\n".encode()
