"""The round trip of a stream's messages. Each has its sender's clock, and the other end sends back
that of the newest message which it has read. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque

ROUND_TRIP_WINDOW = 32  # answers until a shorter round trip is mostly forgotten


class RoundTrip:
    """Of one stream, over all of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0  # seconds, smoothed
        self.newest = 0.0  # the clock of the newest message that was read
        self.unread = 0  # bytes of later messages
        self._messages: deque[tuple[float, int]] = deque()  # these: clock, bytes

    def called(self) -> None:
        """A new call has begun: what was sent on the one before is lost."""
        self._messages.clear()
        self.unread = 0

    def sent(self, clock: float, size: int) -> None:
        """A message of so many bytes was sent."""
        self._messages.append((clock, size))
        self.unread += size

    def received(self, clock: float, now: float, busy: bool) -> bool:
        """Whether an answer is the first to show that messages up to this clock were read. The
        other end answers when it has something to send, so the shortest times are the true ones,
        and longer ones count only if it is `busy`.
        """
        if not self.newest < clock <= now:
            return False
        self.newest = clock
        while self._messages and self._messages[0][0] <= clock:
            self.unread -= self._messages.popleft()[1]
        trip = now - clock
        known = self.seconds or trip
        self.seconds = min(trip, known + busy * (trip - known) / ROUND_TRIP_WINDOW)
        return True

    def late(self, now: float) -> float:
        """By how many seconds the oldest message that was not read is later than usual; 0 while the
        other end has not told of any.
        """
        if not (self.seconds and self._messages):
            return 0.0
        return max(0.0, now - self._messages[0][0] - self.seconds)
