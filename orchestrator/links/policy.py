"""The load-balancing policy: which replica a session goes to. The module is pure: time is an
argument.

Rendezvous hashing: every replica has a score for each key, and a session goes to the replica with
the highest score for its key. All cells therefore choose the same replica without communicating,
and a replica that comes or goes moves only its own sessions (Thaler & Ravishankar, "Using
name-based mappings to increase hit rates", 1998). A replica that has many more sessions than
another is passed over ("consistent hashing with bounded loads").

Outlier detection, as in gRPC and Envoy: a replica that still answers may be slow because its GPU is
throttled or its machine is shared or swaps. A slow replica is ejected: it gets no new sessions for
a while. A long forward pass alone does not prove that a replica is slow, because the pass may have
much to compute or the model may be large. Replicas that compute the same bits are therefore
compared by the time of a pass over a single token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from tandem.protos.streams import PassTimes

SLACK = 4  # how many more sessions a replica may have than the least loaded one
SLOW_SECONDS = 1.0  # a replica counts as slow only if its forward pass takes longer than this
SLOW_FACTOR = 4.0  # a slow replica takes more than this multiple of the time of the fastest other
CONFIRM_SECONDS = 0.5  # seconds that a replica must be slow before its sessions move away
EJECTION_SECONDS = (10.0, 320.0)  # seconds of the first and of the longest ejection


def choose(key: bytes, sessions: Mapping[str, int]) -> str:
    """Return the name of the replica that a session with this key goes to. `sessions` tells how
    many sessions each reachable replica has. Sessions that share cached prefixes have the same key.
    """
    most = min(sessions.values()) + SLACK
    ranking = sorted(sessions, key=lambda name: _score(key, name), reverse=True)
    return next(name for name in ranking if sessions[name] <= most)


def in_group(group: str, groups: Mapping[str, str]) -> Collection[str]:
    """Return the names of the replicas that may continue a text that a replica of `group` has
    generated. Replicas of one group compute the same bits, so only the replicas of this group are
    returned. If the group has no replicas, or if the text is new and `group` is empty, all replicas
    are returned. `groups` maps each replica's name to its group.
    """
    same = [name for name in groups if groups[name] == group]
    return same if group and same else groups.keys()


def _score(key: bytes, name: str) -> bytes:
    return blake2b(name.encode(), key=key[:64], digest_size=8).digest()


@dataclass(slots=True)
class OutlierDetection:
    """The slow replicas of one service. `outliers` are slow now. `ejected` replicas are slow or
    were slow recently, and get no new sessions. `confirmed` outliers have been slow for at least
    CONFIRM_SECONDS, and their sessions move to other replicas.
    """

    outliers: frozenset[str] = frozenset()
    ejected: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()
    # the time at which each outlier became slow
    _since: dict[str, float] = field(default_factory=dict)
    # the end and the length of each replica's ejection
    _ejections: dict[str, tuple[float, float]] = field(default_factory=dict)

    def observe(
        self, passes: Mapping[str, PassTimes], groups: Mapping[str, str], now: float
    ) -> None:
        """Find the outliers from the pass times that the reachable replicas report. Replicas are
        compared only within a group, because all replicas of a group compute the same bits.
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
        """Return the replicas that are neither outliers nor ejected. If every replica is an outlier
        or ejected, return those that are not outliers. If all replicas are outliers, return all of
        them.
        """
        fast = [name for name in names if name not in self.outliers]
        return [name for name in fast if name not in self.ejected] or fast or names

    def _eject(self, name: str, now: float) -> None:
        """Eject a replica, for twice as long as before if its last ejection ended recently."""
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
