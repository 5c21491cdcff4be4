"""Measures the round trip of a stream's messages. Each message carries the time on its sender's
clock, and the other end sends back the time of the newest message that it has read. The module is
pure: time is an argument.
"""

from __future__ import annotations

from collections import deque

ROUND_TRIP_WINDOW = 32  # number of answers after which a shorter round trip is mostly forgotten


class RoundTrip:
    """The round trip of one stream, over all of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0  # smoothed round trip in seconds
        self.newest = 0.0  # clock of the newest message that was read
        self.unread = 0  # number of bytes in the messages that were sent after it
        self._messages: deque[tuple[float, int]] = deque()  # clock and bytes of each unread message

    def called(self) -> None:
        """Note that a new call has begun. Messages that were sent on an earlier call are lost."""
        self._messages.clear()
        self.unread = 0

    def sent(self, clock: float, size: int) -> None:
        """Note that a message of `size` bytes was sent."""
        self._messages.append((clock, size))
        self.unread += size

    def received(self, clock: float, now: float, busy: bool) -> bool:
        """Learn from an answer. Returns whether the answer is the first to show that messages up to
        `clock` were read. The other end answers only when it has something to send. The shortest
        times are therefore the true ones, and longer times count only if the other end is `busy`.
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
        """Return by how many seconds the oldest unread message is later than usual; 0 while the
        other end has not confirmed any message.
        """
        if not (self.seconds and self._messages):
            return 0.0
        return max(0.0, now - self._messages[0][0] - self.seconds)
