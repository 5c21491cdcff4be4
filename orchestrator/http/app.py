"""The routes of the HTTP API, which turn request bodies into requests, and answers into responses.

The module uses the same `Answers` object as the gRPC service, but does not depend on gRPC.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import Tokenizer

from tandem.orchestrator.frontend.client_guard import Authenticator, NoAuthentication
from tandem.orchestrator.frontend.identities import GENERATE, Identity
from tandem.orchestrator.http import errors
from tandem.orchestrator.http.bodies import decoding, parsing
from tandem.orchestrator.http.bodies.schema import ChatBody, CompletionBody, GenerationBody
from tandem.orchestrator.http.bodies.tokens import detokenized, tokenized
from tandem.orchestrator.http.body import BodyReader
from tandem.orchestrator.http.delivery import Choice, Delivery, Frontend
from tandem.orchestrator.http.pages import Pages
from tandem.orchestrator.http.replies import Head, Reply
from tandem.orchestrator.http.responses.body import RENAMED, as_chat
from tandem.orchestrator.http.responses.reply import ResponsesReply
from tandem.orchestrator.http.server import CERTIFICATE
from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.http.tokens import TokenizerApi
from tandem.orchestrator.requests.request import (
    CLIENT_KEY,
    client_digest,
    connection_digest,
    scope_of,
)
from tandem.orchestrator.requests.request import Request as Asked
from tandem.protos.service import tracing
from tandem.protos.types import ModelDescription

REQUEST_ID = "x-request-id"
IGNORED = "x-tandem-ignored"  # response header that lists the ignored fields of the request
GIVEN_ID = re.compile(r"[!-~]{1,128}")

Read = TypeVar("Read")


@dataclass
class HttpApi:
    """The HTTP API of one served model."""

    frontend: Frontend
    model: ModelDescription
    tokenizer: Tokenizer
    registry: CollectorRegistry
    authenticator: Authenticator = field(default_factory=NoAuthentication)
    _body_reader: BodyReader = field(init=False, default_factory=BodyReader)
    _token_texts: TokenTexts = field(init=False)
    _tokenizer_api: TokenizerApi = field(init=False)

    def __post_init__(self) -> None:
        self._token_texts = TokenTexts(self.tokenizer)
        self._tokenizer_api = TokenizerApi(self.frontend.answers, self.tokenizer, self.model)

    def app(self) -> ASGIApp:
        """Return the ASGI application that a server calls."""
        routes = [
            self._generating(self._completions, "/v1/completions"),
            self._generating(self._chats, "/v1/chat/completions"),
            self._generating(self._responses, "/v1/responses"),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            *Pages(self.frontend, self.model, self.registry, self._identity).routes(),
        ]
        return self._named(Starlette(routes=routes, exception_handlers=errors.HANDLERS))  # type: ignore[arg-type]

    async def _completions(self, request: Request) -> Delivery:
        body = await self._read(request, partial(parsing.parsed, CompletionBody))
        return self._delivery(request, body, decoding.completions(body, caller_of(request, body)))

    async def _chats(self, request: Request) -> Delivery:
        body = await self._read(request, partial(parsing.parsed, ChatBody))
        return self._delivery(request, body, decoding.chats(body, caller_of(request, body)))

    async def _responses(self, request: Request) -> Delivery:
        chat, asked = await self._read(request, as_chat)
        (only,) = self._owned(request, decoding.chats(chat, caller_of(request, chat)))
        parallel = chat.parallel_tool_calls is not False
        reply = ResponsesReply(
            request.state.request_id, self.model.name, int(time.time()), asked, parallel
        )
        return Delivery(self.frontend, chat, (Choice(only, reply),), RENAMED)

    def _generating(self, decode: Callable[[Request], Awaitable[Delivery]], path: str) -> Route:
        """Return a route that calls `decode` for each request. `decode` returns the `Delivery` that
        generates and sends the answer. The route logs errors that occur before or during decoding.
        The `Delivery` logs all errors after decoding.
        """

        async def endpoint(request: Request) -> Delivery:
            with self.frontend.ends.decoding(request.state.request_id):
                self.frontend.drain.check()
                request.state.identity = self._identity(request)
                return await decode(request)

        return Route(path, endpoint, methods=["POST"])

    async def _read(
        self, request: Request, parse: Callable[[bytes], tuple[Read, tuple[str, ...]]]
    ) -> Read:
        """Read and parse the body of a request. The names of ignored fields are stored, because a
        header of the response lists them.
        """
        identity, client = request.state.identity, request.client
        owner = identity.name if identity else client.host if client else ""
        async with self._body_reader.read(request, owner) as content:
            body, ignored = await asyncio.to_thread(parse, content)
        request.state.ignored = ", ".join(ignored)
        return body

    def _owned(self, request: Request, asked: Iterable[Asked]) -> Iterator[Asked]:
        """Yield each request with the caller's identity as its owner and the caller's trace id."""
        identity = request.state.identity
        trace = tracing.given(request.headers.get(tracing.TRACEPARENT, ""))
        for each in asked:
            yield replace(identity.owning(each) if identity else each, traceparent=trace)

    def _delivery(self, request: Request, body: GenerationBody, asked: Iterable[Asked]) -> Delivery:
        options, chat = body.stream_options, isinstance(body, ChatBody)
        usage = bool(options and options.include_usage)
        if usage and not body.stream:
            raise decoding.needs_stream()
        head = Head(request.state.request_id, self.model.name, int(time.time()), chat, usage)
        figures = body.speculation is not None
        choices = tuple(
            Choice(each, Reply(head, index, each, self._token_texts, figures))
            for index, each in enumerate(self._owned(request, asked))
        )
        return Delivery(self.frontend, body, choices)

    def _identity(self, request: Request) -> Identity | None:
        """Return the identity of the caller; None if the service does not authenticate clients.
        Raises Unauthenticated for an unknown caller, and PermissionDenied for a caller without the
        right to generate.
        """
        identity = self.authenticator.http_identity(
            request.headers.get("authorization", ""), request.scope["state"].get(CERTIFICATE, "")
        )
        if identity:
            identity.check(GENERATE)
        return identity

    async def _tokenize(self, request: Request) -> Response:
        request.state.identity = self._identity(request)
        asked = await self._read(request, tokenized)
        (whose,) = self._owned(request, [Asked(asked.prompt, client_id=client_id_of(request))])
        return JSONResponse(await self._tokenizer_api.of_prompt(asked, whose))

    async def _detokenize(self, request: Request) -> Response:
        request.state.identity = self._identity(request)
        asked = await self._read(request, detokenized)
        return JSONResponse(await self._tokenizer_api.to_prompt(asked))

    def _named(self, app: ASGIApp) -> ASGIApp:
        """Wrap `app` so that every request has an id, which is logged and sent back. The client can
        choose the id, and a request without a valid id gets a random id. While the service drains,
        every response closes its connection, so that clients connect to another instance.
        """

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            given = dict(scope["headers"]).get(REQUEST_ID.encode(), b"").decode("latin-1")
            request_id = given if GIVEN_ID.fullmatch(given) else secrets.token_hex(8)
            scope.setdefault("state", {})["request_id"] = request_id

            async def answer(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers[REQUEST_ID] = request_id
                    if ignored := scope["state"].get("ignored"):
                        headers[IGNORED] = ignored
                    if self.frontend.drain.leaving:
                        headers["connection"] = "close"
                await send(message)

            with structlog.contextvars.bound_contextvars(request_id=request_id):
                await app(scope, receive, answer)

        return call


def caller_of(request: Request, body: GenerationBody) -> decoding.Caller:
    """Return the caller of a request. Requests with the same client name or cache key share cached
    prefixes. Requests with the same client name or user share a quota. Requests without a client
    name or user share the quota of their connection.
    """
    name = request.headers.get(CLIENT_KEY)
    end_user = isinstance(body, ChatBody) and body.safety_identifier
    return decoding.Caller(
        scope_of(client_digest(name or body.prompt_cache_key or ""), body.cache_salt or ""),
        client_id_of(request, body.user or end_user or ""),
        request.state.request_id,
    )


def client_id_of(request: Request, user: str = "") -> bytes:
    """Return the id of the client whose quota a request uses. The id is a digest of the client's
    name or of the user. If the request gives no client name and no user, the id is a digest of the
    connection.
    """
    host = f"{request.client.host}:{request.client.port}" if request.client else ""
    return client_digest(request.headers.get(CLIENT_KEY) or user) or connection_digest(host)
