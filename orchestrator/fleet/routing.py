"""Which replica a session goes to. Pure.

Rendezvous hashing: every replica has a score for a key, and the highest wins, so that all round
workers agree without talking, and a replica that comes or goes moves no session but its own
(Thaler & Ravishankar, "Using name-based mappings to increase hit rates", 1998). Of the two highest
the one with fewer sessions is taken where the difference is large ("power of two choices").
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

SLACK = 4  # sessions more than the second replica that the first may have


def choose(key: bytes, sessions: Mapping[str, int]) -> str:
    """The name of a replica, of those that can be reached; `sessions`: how many each has. The key
    of sessions that share cached prefixes is the same.
    """
    first, *others = sorted(sessions, key=lambda name: _score(key, name), reverse=True)[:2]
    crowded = any(sessions[first] > sessions[other] + SLACK for other in others)
    return others[0] if crowded else first


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()
