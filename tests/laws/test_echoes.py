"""The clocks that a service sends back show how far it is, and whether it still reads."""

from __future__ import annotations

import pytest

from tandem.orchestrator.workers.echoes import LARGE_BYTES, Echoes


def test_each_message_is_shown_as_read_once() -> None:
    echoes = Echoes()
    assert not echoes.received(0.0, 1.0, True), "nothing was sent yet"
    echoes.sent(1.0, 10)
    assert echoes.received(1.0, 1.1, True)
    assert not echoes.received(1.0, 1.2, True)
    assert not echoes.received(9.0, 1.2, True), "nobody knows clocks that are to come"


def test_the_round_trip_is_the_shortest_and_longer_ones_count_if_the_service_is_busy() -> None:
    echoes = Echoes()
    echoes.received(1.0, 1.1, False)
    echoes.received(2.0, 2.5, False)
    assert echoes.round_trip == pytest.approx(0.1)
    echoes.received(3.0, 3.5, True)
    assert 0.1 < echoes.round_trip < 0.2
    echoes.received(4.0, 4.05, True)
    assert echoes.round_trip == pytest.approx(0.05)


def test_a_service_that_reads_makes_progress_and_one_that_does_not_makes_none() -> None:
    echoes = Echoes()
    echoes.received(1.0, 1.1, False)
    before = echoes.progress()
    echoes.sent(1.2, 10)
    echoes.sent(1.3, LARGE_BYTES + 1)
    assert echoes.progress() == before, "the small one has not arrived, although it is next"
    echoes.received(1.2, 1.4, False)
    assert echoes.progress() != before


def test_a_large_message_may_take_its_time() -> None:
    echoes = Echoes()
    echoes.sent(1.0, LARGE_BYTES + 1)
    assert echoes.progress() != echoes.progress()
    echoes.received(1.0, 9.0, False)
    assert echoes.progress() == echoes.progress()


def test_what_was_sent_on_a_lost_call_is_not_waited_for() -> None:
    echoes = Echoes()
    echoes.sent(1.0, LARGE_BYTES + 1)
    echoes.called()
    assert echoes.progress() == echoes.progress()
