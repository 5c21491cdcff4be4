"""The load-balancing policy: which replica a session goes to. Pure: time is an argument.

Rendezvous hashing: every replica has a score for a key, and the highest wins, so that all
cells agree without talking, and a replica that comes or goes moves no session but its own
(Thaler & Ravishankar, "Using name-based mappings to increase hit rates", 1998). One that has many
more sessions than another is passed over ("consistent hashing with bounded loads").

Outlier detection, as in gRPC and Envoy: a replica that still answers may be slow, as its GPU is
throttled, its machine is shared or swaps, and is ejected for a while. A pass that lasts is a sign
of that, unless it has much to do or the model is large; so replicas that compute the same are
compared by what a pass over a single token takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from tandem.protos.streams import PassTimes

SLACK = 4  # sessions more than the replica with fewest that one may have
SLOW_SECONDS = 1.0  # of one forward pass
SLOW_FACTOR = 4.0  # times as slow as another
CONFIRM_SECONDS = 0.5  # that it stays slow, before its sessions leave it
EJECTION_SECONDS = (10.0, 320.0)  # without new sessions: at first, and at most


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


@dataclass(slots=True)
class OutlierDetection:
    """What is known of the replicas of one service: outliers, which are slow now; the `ejected`,
    which are or were not long ago, and get no new sessions; and the `confirmed` outliers, which
    sessions shall leave.
    """

    outliers: frozenset[str] = frozenset()
    ejected: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()
    _since: dict[str, float] = field(default_factory=dict)  # when each outlier became one
    _ejections: dict[str, tuple[float, float]] = field(default_factory=dict)  # until, for how long

    def observe(
        self, passes: Mapping[str, PassTimes], groups: Mapping[str, str], now: float
    ) -> None:
        """What the replicas that can be reached report, and which compute the same."""
        self.outliers = frozenset(name for name in passes if _is_slow(name, passes, groups))
        self._since = {name: self._since.get(name, now) for name in self.outliers}
        self._ejections = {name: each for name, each in self._ejections.items() if name in passes}
        for name in self.outliers:
            self._eject(name, now)
        self.ejected = frozenset(n for n, (until, _) in self._ejections.items() if until > now)
        since = self._since.items()
        self.confirmed = frozenset(name for name, at in since if now - at >= CONFIRM_SECONDS)

    def best(self, names: Collection[str]) -> Collection[str]:
        """Of those, the ones that are not ejected; if all are, the ones that are no outliers; if
        all are, all.
        """
        fast = [name for name in names if name not in self.outliers]
        return [name for name in fast if name not in self.ejected] or fast or names

    def _eject(self, name: str, now: float) -> None:
        """For twice as long if it was tried again and is as slow as before."""
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
