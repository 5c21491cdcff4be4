"""The clocks that a service sends back show how far it is, and whether it still reads."""

from __future__ import annotations

import pytest

from tandem.orchestrator.links.round_trip import LARGE_BYTES, RoundTrip


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


def test_a_service_that_reads_makes_progress_and_one_that_does_not_makes_none() -> None:
    trip = RoundTrip()
    trip.received(1.0, 1.1, False)
    before = trip.progress()
    trip.sent(1.2, 10)
    trip.sent(1.3, LARGE_BYTES + 1)
    assert trip.progress() == before, "the small one has not arrived, although it is next"
    trip.received(1.2, 1.4, False)
    assert trip.progress() != before


def test_a_large_message_may_take_its_time() -> None:
    trip = RoundTrip()
    trip.sent(1.0, LARGE_BYTES + 1)
    assert trip.progress() != trip.progress()
    trip.received(1.0, 9.0, False)
    assert trip.progress() == trip.progress()


def test_what_was_sent_on_a_lost_call_is_not_waited_for() -> None:
    trip = RoundTrip()
    trip.sent(1.0, LARGE_BYTES + 1)
    trip.called()
    assert trip.progress() == trip.progress()
