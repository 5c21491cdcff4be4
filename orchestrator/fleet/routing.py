"""Which replica a session goes to. Pure.

Rendezvous hashing: every replica has a score for a key, and the highest wins, so that all
cells agree without talking, and a replica that comes or goes moves no session but its own
(Thaler & Ravishankar, "Using name-based mappings to increase hit rates", 1998). One that has many
more sessions than another is passed over ("consistent hashing with bounded loads").
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import blake2b

SLACK = 4  # sessions more than the replica with fewest that one may have


def choose(key: bytes, sessions: Mapping[str, int]) -> str:
    """The name of a replica, of those that can be reached; `sessions`: how many each has. The key
    of sessions that share cached prefixes is the same.
    """
    most = min(sessions.values()) + SLACK
    ranking = sorted(sessions, key=lambda name: _score(key, name), reverse=True)
    return next(name for name in ranking if sessions[name] <= most)


def of_group(group: str, groups: Mapping[str, str]) -> Collection[str]:
    """The names of replicas that may continue a text from a group, by the group of each: those of
    the same one, which compute the same bits, or all if there are none. A new text has no group.
    """
    same = [name for name in groups if groups[name] == group]
    return same if group and same else groups.keys()


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()
