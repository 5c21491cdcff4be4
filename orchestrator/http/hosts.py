"""By which names a port on loopback may be asked without authentication.

A page in a browser here can ask a server of its own name, and that name can lead to loopback.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.orchestrator.http.errors import body_of
from tandem.protos.address import names_this_machine
from tandem.protos.errors import PermissionDenied


def asked_by_own_names(app: ASGIApp) -> ASGIApp:
    """The same, but requests for other hosts are refused."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        if names_this_machine(host):
            await app(scope, receive, send)
            return
        refused = PermissionDenied(f"the host {host[:100]!r} is not this machine")
        await JSONResponse(body_of(refused), 403)(scope, receive, send)

    return call
