"""Who has opened a connection, as its certificate has it; knows no routes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

CERTIFICATE = "certificate"  # in the state of a request: the common name, empty without one


class CertifiedProtocol(H11Protocol):
    """Puts it into the state of every request of the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called after the handshake, which has verified the certificate."""
        super().connection_made(transport)
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        names = dict(pair for part in subject for pair in part)
        self.app_state = {**self.app_state, CERTIFICATE: names.get("commonName", "")}
