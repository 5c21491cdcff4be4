"""Which replica a session goes to. Pure.

Rendezvous hashing: every replica has a score for a key, and the highest wins, so that all round
workers agree without talking, and a replica that comes or goes moves no session but its own
(Thaler & Ravishankar, "Using name-based mappings to increase hit rates", 1998). One that has many
more sessions than another is passed over ("consistent hashing with bounded loads").
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

SLACK = 4  # sessions more than the replica with fewest that one may have


def choose(key: bytes, sessions: Mapping[str, int]) -> str:
    """The name of a replica, of those that can be reached; `sessions`: how many each has. The key
    of sessions that share cached prefixes is the same.
    """
    most = min(sessions.values()) + SLACK
    ranking = sorted(sessions, key=lambda name: _score(key, name), reverse=True)
    return next(name for name in ranking if sessions[name] <= most)


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()
