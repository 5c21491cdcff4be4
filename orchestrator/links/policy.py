"""The load-balancing policy: which replica a session goes to. The module is pure: time is an
argument.

Rendezvous hashing: every replica has a score for a key, and the highest wins, so that all cells
agree without talking, and a replica that comes or goes moves no session but its own (Thaler &
Ravishankar, "Using name-based mappings to increase hit rates", 1998). A replica that has many more
sessions than another is passed over ("consistent hashing with bounded loads").

Outlier detection, as in gRPC and Envoy: a replica that still answers may be slow because its GPU is
throttled or its machine is shared or swaps. Such a replica is ejected for a while. A long pass is a
sign of slowness, unless the pass has much to do or the model is large. Replicas that compute the
same bits are therefore compared by the time of a pass over a single token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from tandem.protos.streams import PassTimes

SLACK = 4  # sessions that a replica may have more than the replica with fewest
SLOW_SECONDS = 1.0  # time of one forward pass, above which a replica may be slow
SLOW_FACTOR = 4.0  # times as slow as another replica
CONFIRM_SECONDS = 0.5  # time for which a replica stays slow before its sessions leave it
EJECTION_SECONDS = (10.0, 320.0)  # time without new sessions: at first, and at most


def choose(key: bytes, sessions: Mapping[str, int]) -> str:
    """Return the name of the replica that a session with this key goes to. `sessions` tells how
    many sessions each reachable replica has. Sessions that share cached prefixes have the same key.
    """
    most = min(sessions.values()) + SLACK
    ranking = sorted(sessions, key=lambda name: _score(key, name), reverse=True)
    return next(name for name in ranking if sessions[name] <= most)


def in_group(group: str, groups: Mapping[str, str]) -> Collection[str]:
    """Return the names of the replicas that may continue a text from a group: those of the same
    group, which compute the same bits, or all if there are none. `groups` maps each replica's name
    to its group. A new text has no group.
    """
    same = [name for name in groups if groups[name] == group]
    return same if group and same else groups.keys()


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()


@dataclass(slots=True)
class OutlierDetection:
    """The slow replicas of one service: the `outliers` are slow now; the `ejected` ones are slow or
    were so not long ago, and get no new sessions; sessions leave the `confirmed` outliers.
    """

    outliers: frozenset[str] = frozenset()
    ejected: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()
    # the time at which each outlier became one
    _since: dict[str, float] = field(default_factory=dict)
    # the end and the length of each replica's ejection
    _ejections: dict[str, tuple[float, float]] = field(default_factory=dict)

    def observe(
        self, passes: Mapping[str, PassTimes], groups: Mapping[str, str], now: float
    ) -> None:
        """Learn from the pass times that the reachable replicas report, and from their groups:
        replicas of one group compute the same.
        """
        self.outliers = frozenset(name for name in passes if _is_slow(name, passes, groups))
        self._since = {name: self._since.get(name, now) for name in self.outliers}
        self._ejections = {name: each for name, each in self._ejections.items() if name in passes}
        for name in self.outliers:
            self._eject(name, now)
        self.ejected = frozenset(n for n, (until, _) in self._ejections.items() if until > now)
        since = self._since.items()
        self.confirmed = frozenset(name for name, at in since if now - at >= CONFIRM_SECONDS)

    def best(self, names: Collection[str]) -> Collection[str]:
        """Return the replicas that are not ejected; if all are, those that are no outliers; if all
        are outliers, all.
        """
        fast = [name for name in names if name not in self.outliers]
        return [name for name in fast if name not in self.ejected] or fast or names

    def _eject(self, name: str, now: float) -> None:
        """Eject a replica, for twice as long if it was tried again and is as slow as before."""
        (least, most), (until, seconds) = EJECTION_SECONDS, self._ejections.get(name, (-inf, 0.0))
        if until <= now:
            seconds = min(most, 2 * seconds) if now - until < seconds else least
        self._ejections[name] = now + seconds, seconds


def _is_slow(name: str, passes: Mapping[str, PassTimes], groups: Mapping[str, str]) -> bool:
    others = (
        times.light
        for other, times in passes.items()
        if other != name and groups[other] == groups[name] and times.light
    )
    times = passes[name]
    return times.newest > SLOW_SECONDS and times.light > SLOW_FACTOR * min(others, default=inf)
