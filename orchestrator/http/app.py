"""The routes of the HTTP API: bodies to requests, answers to replies.

A thin shell over the same answers that gRPC has; knows no gRPC.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus

import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import Tokenizer

from tandem.orchestrator.frontend.client_guard import Anybody, Callers
from tandem.orchestrator.frontend.identities import GENERATE, Identity
from tandem.orchestrator.http import decoding, errors, parsing
from tandem.orchestrator.http.body import Bodies, BodyTooLarge, NotJson
from tandem.orchestrator.http.delivery import Choice, Delivery, Frontend
from tandem.orchestrator.http.replies import Head, Reply, TokenTexts
from tandem.orchestrator.http.schema import ChatBody, CompletionBody, GenerationBody
from tandem.orchestrator.http.server import CERTIFICATE
from tandem.orchestrator.requests.request import (
    CLIENT_KEY,
    client_digest,
    connection_digest,
    scope_of,
)
from tandem.protos.errors import Internal, TandemError
from tandem.protos.service import tracing
from tandem.protos.types import ModelDescription

REQUEST_ID = "x-request-id"
IGNORED = "x-tandem-ignored"  # fields of the body that were not used
GIVEN_ID = re.compile(r"[!-~]{1,128}")
OWNER = "tandem"
OF_BODIES: dict[type[TandemError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NotJson: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
GONE = 499  # what nginx logs of a client that left

log = structlog.get_logger()


@dataclass
class HttpApi:
    """Serves one model."""

    frontend: Frontend
    model: ModelDescription
    tokenizer: Tokenizer
    callers: Callers = field(default_factory=Anybody)
    _bodies: Bodies = field(init=False, default_factory=Bodies)
    _tokens: TokenTexts = field(init=False)
    _began: int = field(init=False)

    def __post_init__(self) -> None:
        self._tokens, self._began = TokenTexts(self.tokenizer), int(time.time())

    def app(self) -> ASGIApp:
        """What a server calls."""
        routes = [
            Route("/v1/completions", partial(self._generate, CompletionBody), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._generate, ChatBody), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/health", self._health),
        ]
        refusals = {
            TandemError: _refused,
            HTTPException: _no_route,
            ClientDisconnect: _left,
            Exception: _failed,
        }
        return self._named(Starlette(routes=routes, exception_handlers=refusals))  # type: ignore[arg-type]

    async def _generate(self, kind: type[GenerationBody], request: Request) -> Delivery:
        """What goes wrong before the request is decoded is logged here, later by its delivery."""
        with self.frontend.ends.decoding(request.state.request_id):
            return await self._decoded(kind, request)

    async def _decoded(self, kind: type[GenerationBody], request: Request) -> Delivery:
        self.frontend.drain.check()
        identity = self._identity(request)
        owner = identity.name if identity else request.client.host if request.client else ""
        async with self._bodies.read(request, owner) as content:
            body, ignored = await asyncio.to_thread(parsing.parsed, kind, content)
        request_id = request.state.request_id
        chat = isinstance(body, ChatBody)
        caller = caller_of(request, body)
        if isinstance(body, ChatBody):
            asked, logprobs = decoding.chats(body, caller), bool(body.logprobs)
        else:
            assert isinstance(body, CompletionBody)
            asked, logprobs = decoding.completions(body, caller), body.logprobs is not None
        trace = tracing.given(request.headers.get(tracing.TRACEPARENT, ""))
        asked = tuple(
            replace(identity.owning(each) if identity else each, traceparent=trace)
            for each in asked
        )
        options = body.stream_options
        usage = bool(options and options.include_usage)
        if usage and not body.stream:
            raise decoding.needs_stream()
        head = Head(request_id, self.model.name, int(time.time()), chat, usage)
        figures = body.speculation is not None
        choices = tuple(
            Choice(each, Reply(head, place, logprobs, self._tokens, figures))
            for place, each in enumerate(asked)
        )
        request.state.ignored = ", ".join(ignored)
        return Delivery(self.frontend, body, choices)

    def _identity(self, request: Request) -> Identity | None:
        """Who asks, where clients are known; raises Unauthenticated, PermissionDenied."""
        identity = self.callers.authorized(
            request.headers.get("authorization", ""), request.scope["state"].get(CERTIFICATE, "")
        )
        if identity:
            identity.check(GENERATE)
        return identity

    async def _models(self, request: Request) -> Response:
        self._identity(request)
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Response:
        self._identity(request)
        if (name := request.path_params["name"]) != self.model.name:
            problem = f"model is {name!r}; served is {self.model.name!r}"
            found = errors.problem(HTTPStatus.NOT_FOUND, problem, "model", "model_not_found")
            return JSONResponse(found, HTTPStatus.NOT_FOUND)
        return JSONResponse(self._described())

    def _described(self) -> dict[str, object]:
        return {
            "id": self.model.name,
            "object": "model",
            "created": self._began,
            "owned_by": OWNER,
            "max_model_len": self.model.context_length,
        }

    async def _health(self, request: Request) -> Response:
        serving = self.frontend.serving() and not self.frontend.drain.leaving
        return JSONResponse({}, HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE)

    def _named(self, app: ASGIApp) -> ASGIApp:
        """Every request has an id, its own or one of ours, which is sent back and logged. A service
        that is stopping has its clients make new connections, elsewhere.
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
    """Requests share cached prefixes by name or cache key, and places by name or user; those with
    neither are of their connection.
    """
    name = request.headers.get(CLIENT_KEY)
    end_user = isinstance(body, ChatBody) and body.safety_identifier
    user = client_digest(name or body.user or end_user or "")
    host = f"{request.client.host}:{request.client.port}" if request.client else ""
    return decoding.Caller(
        scope_of(client_digest(name or body.prompt_cache_key or ""), body.cache_salt or ""),
        user or connection_digest(host),
        request.state.request_id,
    )


async def _refused(request: Request, error: TandemError) -> Response:
    if status := OF_BODIES.get(type(error)):
        return JSONResponse(errors.problem(status, str(error), "body"), status)
    return errors.response(error)


async def _no_route(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    problem = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(errors.problem(status, problem), status, error.headers)


async def _left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=GONE)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a call failed", exc_info=error)
    return errors.response(Internal("internal error; see the server's log"))
