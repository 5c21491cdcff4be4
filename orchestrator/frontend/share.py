"""Names of clients as digests: requests of one client use each other's cached prefixes, and share
the places. Pure.
"""

from __future__ import annotations

import hashlib

CLIENT_KEY = "x-tandem-client"


def client_digest(name: str) -> bytes:
    """Empty for a client without a name; a name that others cannot guess keeps them out."""
    return _digest(f"client {name}") if name else b""


def scope_of(client: bytes, salt: str) -> bytes:
    """Whose cached prefixes a request of a client may use: with a salt only those of its own salt,
    else those of the client, which are everybody's without one.
    """
    return _digest(f"salt {client.hex()} {salt}") if salt else client


def connection_digest(peer: str) -> bytes:
    """Whose share a request has whose client has no name."""
    return _digest(f"connection {peer}")


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]
