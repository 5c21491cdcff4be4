"""The errors of the HTTP API in OpenAI's format, and the HTTP status of each."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tandem.orchestrator.http.body import BodyTooLarge, NotJson
from tandem.protos.errors import Busy, Internal, InvalidRequest, TandemError

BODY_STATUS: dict[type[TandemError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    NotJson: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
}
CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs for a client that disconnected
MAX_MESSAGE_LENGTH = 2000  # longer error messages are cut off
STATUS = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "FAILED_PRECONDITION": HTTPStatus.SERVICE_UNAVAILABLE,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "ABORTED": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.GATEWAY_TIMEOUT,
}
CODES = {
    HTTPStatus.UNAUTHORIZED: "invalid_api_key",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_exceeded",
}

log = structlog.get_logger()


def problem(
    status: HTTPStatus, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the JSON body of an error."""
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    code = code or CODES.get(status)
    return {
        "error": {
            "message": message[:MAX_MESSAGE_LENGTH],
            "type": kind,
            "param": param,
            "code": code,
        }
    }


def status_of(error: TandemError) -> HTTPStatus:
    """Return the HTTP status of an error; NOT_FOUND if the requested model is not served."""
    if isinstance(error, InvalidRequest) and {v.field for v in error.violations} == {"model"}:
        return HTTPStatus.NOT_FOUND
    return STATUS.get(error.status, HTTPStatus.INTERNAL_SERVER_ERROR)


def body_of(error: TandemError) -> dict[str, Any]:
    """Return the JSON body of an error. The message of an unexpected error is not revealed."""
    status = status_of(error)
    if status is HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Internal):
        error = Internal("internal error; see the server's log")
    if not isinstance(error, InvalidRequest):
        return problem(status, str(error))
    param = error.violations[0].field
    code = next((each.code for each in error.violations if each.code), None)
    if status is HTTPStatus.NOT_FOUND and param == "model":
        code = "model_not_found"
    return problem(status, str(error), param, code)


def response(error: TandemError) -> JSONResponse:
    """Return the whole HTTP response to a request that failed before its answer began."""
    headers = {}
    if isinstance(error, Busy):
        headers["retry-after"] = str(math.ceil(error.retry_after))
        headers["retry-after-ms"] = str(round(error.retry_after * 1000))
    if status_of(error) is HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(body_of(error), status_of(error), headers)


async def _refused(request: Request, error: TandemError) -> Response:
    if status := BODY_STATUS.get(type(error)):
        return JSONResponse(problem(status, str(error), "body"), status)
    return response(error)


async def _no_route(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(problem(status, message), status, error.headers)


async def _left(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a call failed", exc_info=error)
    return response(Internal("internal error; see the server's log"))


HANDLERS = {
    TandemError: _refused,
    HTTPException: _no_route,
    ClientDisconnect: _left,
    Exception: _failed,
}
