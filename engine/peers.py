"""Sessions belong to the peer that opened them: names are made its own before anything is looked up
by them.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tandem.protos.types import Context


def own(peer: str, name: bytes) -> bytes:
    """The name of a session, or of a client, which may be empty, as this peer's: no other can make
    the same. Without TLS there are no peers, and names are as they were sent.
    """
    if not peer:
        return name
    return hashlib.sha256(peer.encode() + b"\0" + name).digest()


def owned(peer: str, context: Context) -> Context:
    """What an opening reports, with names of this peer."""
    session_id, client = own(peer, context.session_id), own(peer, context.client)
    return replace(context, session_id=session_id, client=client)
