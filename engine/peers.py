"""Tie the names of sessions and clients to the peer that sent them, before anything is looked up
by a name: a session belongs to the peer that opened it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tandem.protos.types import Context


def own(peer: str, name: bytes) -> bytes:
    """Return the name of a session or a client (which may be empty) as this peer's own: no other
    peer can make the same name. Without TLS there are no peers, and names stay as they were sent.
    """
    if not peer:
        return name
    return hashlib.sha256(peer.encode() + b"\0" + name).digest()


def owned(peer: str, context: Context) -> Context:
    """Return the context of an opening with its names made this peer's own."""
    session_id, client = own(peer, context.session_id), own(peer, context.client)
    return replace(context, session_id=session_id, client=client)
