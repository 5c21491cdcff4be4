"""The pauses before a stream is opened again."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.orchestrator.rounds.stream import SessionStream
from tandem.protos.errors import TransportLost
from tests.laws.test_balanced import FakeLink
from tests.laws.wires import TimerHandle


class Pauses:
    """A timer that only records its delays."""

    def __init__(self) -> None:
        self.found: list[float] = []
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def call_later(self, seconds: float, call: Any) -> TimerHandle:
        self.found.append(seconds)
        return TimerHandle(call)


def test_they_double_up_to_a_limit_however_often_it_fails() -> None:
    timer = Pauses()
    stream: SessionStream[Any, Any] = SessionStream(
        FakeLink(), timer, lambda: None, print, lambda error: stream.retry(0.2, 2.0)
    )
    for _ in range(2000):
        stream.failed(TransportLost("the service cannot be reached"))
    assert timer.found[:6] == pytest.approx([0.2, 0.4, 0.8, 1.6, 2.0, 2.0])
    assert set(timer.found[6:]) == {2.0}


def test_only_what_has_passed_of_a_pause_counts_as_waited() -> None:
    timer = Pauses()
    stream: SessionStream[Any, Any] = SessionStream(
        FakeLink(), timer, lambda: None, print, lambda error: stream.retry(8.0, 8.0)
    )
    stream.failed(TransportLost("the service cannot be reached"))
    timer.time = 1.0
    stream.failed(TransportLost("the service cannot be reached"))
    assert stream.waited == 1.0
