"""The clocks that a service echoes show the round trip, and whether the service still reads."""

from __future__ import annotations

import pytest

from tandem.protos.transport import heartbeat
from tandem.protos.transport.round_trip import RoundTrip


def test_each_message_is_shown_as_read_once() -> None:
    trip = RoundTrip()
    assert not trip.received(0.0, 1.0, True), "nothing was sent yet"
    trip.sent(1.0, 10)
    assert trip.received(1.0, 1.1, True)
    assert not trip.received(1.0, 1.2, True)
    assert not trip.received(9.0, 1.2, True), "nobody knows clocks that are to come"


def test_the_round_trip_is_the_shortest_and_longer_ones_count_if_the_service_is_busy() -> None:
    trip = RoundTrip()
    trip.received(1.0, 1.1, False)
    trip.received(2.0, 2.5, False)
    assert trip.seconds == pytest.approx(0.1)
    trip.received(3.0, 3.5, True)
    assert 0.1 < trip.seconds < 0.2
    trip.received(4.0, 4.05, True)
    assert trip.seconds == pytest.approx(0.05)


def test_who_reads_nothing_has_the_time_that_what_was_sent_takes_on_a_slow_line() -> None:
    trip, second = RoundTrip(), int(1 / heartbeat.SECONDS)
    assert heartbeat.missed(trip.unread) == heartbeat.MAX_MISSED
    trip.sent(1.0, int(heartbeat.SLOWEST_CONNECTION))
    trip.sent(1.1, int(heartbeat.SLOWEST_CONNECTION))
    assert heartbeat.missed(trip.unread) == heartbeat.MAX_MISSED + 2 * second
    trip.received(1.0, 2.0, False)
    assert heartbeat.missed(trip.unread) == heartbeat.MAX_MISSED + second
    trip.called()
    assert trip.unread == 0, "what was sent on a lost call is not waited for"


def test_messages_wait_on_their_way_when_the_oldest_is_late() -> None:
    trip = RoundTrip()
    trip.sent(1.0, 10)
    assert not trip.late(9.0), "the other end may be one that does not tell what it reads"
    trip.received(1.0, 1.5, True)
    assert not trip.late(9.0), "everything was read"
    trip.sent(2.0, 10)
    trip.sent(2.25, 10)
    assert not trip.late(2.5)
    assert trip.late(2.75) == 0.25
    trip.received(2.0, 2.5, True)
    assert not trip.late(2.75)
    assert trip.late(3.0) == 0.25
