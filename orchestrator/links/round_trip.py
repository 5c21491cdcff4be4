"""The round trip to a service, by the clocks that it sends back: each message has the sender's
clock, and an answer has that of the newest message which the service has read. Pure: time is an
argument.
"""

from __future__ import annotations

from collections import deque

ROUND_TRIP_WINDOW = 32  # answers until a shorter round trip is mostly forgotten
LARGE_BYTES = 32 << 10  # of a message that may be long on its way on a slow connection


class RoundTrip:
    """Of one link, over all of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0  # seconds, smoothed
        self._newest = 0.0
        self._unread: deque[tuple[float, int]] = deque()  # later messages: the clock of each, bytes

    def called(self) -> None:
        """A new call has begun: what was sent on the one before is lost."""
        self._unread.clear()

    def sent(self, clock: float, size: int) -> None:
        """A message of so many bytes was sent."""
        self._unread.append((clock, size))

    def received(self, clock: float, now: float, busy: bool) -> bool:
        """Whether an answer is the first to show that messages up to this clock were read. A
        service answers when it has something to send, so the shortest times are the true ones, and
        longer ones count only if it is `busy`.
        """
        if not self._newest < clock <= now:
            return False
        self._newest = clock
        while self._unread and self._unread[0][0] <= clock:
            self._unread.popleft()
        trip = now - clock
        known = self.seconds or trip
        self.seconds = min(trip, known + busy * (trip - known) / ROUND_TRIP_WINDOW)
        return True

    def progress(self) -> object:
        """Differs from an earlier one if the service has read something meanwhile, or may be
        receiving a large message: what is sent to it may be lost although its answers come.
        """
        large = self._unread and self._unread[0][1] > LARGE_BYTES
        return object() if large else self._newest
