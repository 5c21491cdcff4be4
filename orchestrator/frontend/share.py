"""Names of clients as digests: requests of one client may use each other's cached prefixes, and
share the places. Pure.
"""

from __future__ import annotations

import hashlib

CLIENT_KEY = "x-tandem-client"


def client_digest(name: str) -> bytes:
    """Empty for a client without a name; a name that others cannot guess keeps them out."""
    return _digest(f"client {name}") if name else b""


def connection_digest(peer: str) -> bytes:
    """Whose share a request has whose client has no name."""
    return _digest(f"connection {peer}")


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]
