"""Measures the round-trip time of a stream. Each message carries the time on its sender's clock,
and the other end sends back the time of the newest message that it has read. The module is pure:
the current time is passed as an argument.
"""

from __future__ import annotations

from collections import deque

ROUND_TRIP_WINDOW = 32  # an increase is averaged over about this many answers


class RoundTrip:
    """The round-trip time of one stream, measured over all of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0  # smoothed round-trip time in seconds
        self.newest = 0.0  # send time of the newest message that the other end has read
        self.unread = 0  # bytes of all messages that were sent after that message
        self._messages: deque[tuple[float, int]] = deque()  # send time and size of unread messages

    def called(self) -> None:
        """Record that a new call has begun. The messages of earlier calls count as lost."""
        self._messages.clear()
        self.unread = 0

    def sent(self, clock: float, size: int) -> None:
        """Record that a message of `size` bytes was sent."""
        self._messages.append((clock, size))
        self.unread += size

    def received(self, clock: float, now: float, busy: bool) -> bool:
        """Update the round-trip time from an answer. Returns whether the answer is the first to
        show that messages up to `clock` were read. The other end answers only when it has something
        to send, so a long measured time may only mean that it was idle. A measurement that is
        shorter than the current value therefore replaces it. A longer measurement raises
        the value slightly, and only if the other end is `busy`.
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
        """Return by how many seconds the age of the oldest unread message exceeds the round-trip
        time. The result is 0 while the other end has not confirmed any message.
        """
        if not (self.seconds and self._messages):
            return 0.0
        return max(0.0, now - self._messages[0][0] - self.seconds)
