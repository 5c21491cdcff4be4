"""Which replicas are much slower than others that compute the same. Pure: times in, names out.

A replica that still answers may be slow: its GPU is throttled, its machine is shared or swaps. Its
sessions are better served by another. A pass that lasts is a sign of that, unless it has much to do
or the model is large; so replicas are compared by what a pass over a single token takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from tandem.protos.streams import PassTimes

SLOW_SECONDS = 1.0  # of one forward pass
SLOW_FACTOR = 4.0  # times as slow as another
CONFIRM_SECONDS = 0.5  # that it stays slow, before its sessions leave it
AVOID_SECONDS = (10.0, 320.0)  # without new sessions: at first, and at most


@dataclass(slots=True)
class Slowness:
    """What is known of the replicas of one service: those that are slow now, those that are, or
    were not long ago, and shall get no new sessions, and those that sessions shall leave.
    """

    slow: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    _since: dict[str, float] = field(default_factory=dict)  # when those slow now became slow
    _avoidance: dict[str, tuple[float, float]] = field(default_factory=dict)  # until, for how long

    def observe(
        self, passes: Mapping[str, PassTimes], groups: Mapping[str, str], now: float
    ) -> None:
        """What the replicas that can be reached report, and which compute the same."""
        self.slow = frozenset(name for name in passes if _is_slow(name, passes, groups))
        self._since = {name: self._since.get(name, now) for name in self.slow}
        self._avoidance = {
            name: avoidance for name, avoidance in self._avoidance.items() if name in passes
        }
        for name in self.slow:
            self._avoid(name, now)
        self.avoided = frozenset(n for n, (until, _) in self._avoidance.items() if until > now)
        self.left = frozenset(n for n, at in self._since.items() if now - at >= CONFIRM_SECONDS)

    def best(self, names: Collection[str]) -> Collection[str]:
        """Of those, the ones that are not avoided; if all are, the ones that are not slow now; if
        all are, all.
        """
        fast = [name for name in names if name not in self.slow]
        return [name for name in fast if name not in self.avoided] or fast or names

    def _avoid(self, name: str, now: float) -> None:
        """For twice as long if it was tried again and is as slow as before."""
        (least, most), (until, seconds) = AVOID_SECONDS, self._avoidance.get(name, (-inf, 0.0))
        if until <= now:
            seconds = min(most, 2 * seconds) if now - until < seconds else least
        self._avoidance[name] = now + seconds, seconds


def _is_slow(name: str, passes: Mapping[str, PassTimes], groups: Mapping[str, str]) -> bool:
    others = (
        times.light
        for other, times in passes.items()
        if other != name and groups[other] == groups[name] and times.light
    )
    times = passes[name]
    return times.newest > SLOW_SECONDS and times.light > SLOW_FACTOR * min(others, default=inf)
