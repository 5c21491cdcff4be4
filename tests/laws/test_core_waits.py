"""How long a thread waits for a processor core."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tandem.engine.schedule import core_waits
from tandem.engine.schedule.core_waits import HORIZON, CoreWaits, thread_seconds


def observed(waits: CoreWaits, ran: float, waited: float, steps: int = 100) -> float:
    """Return the ratio after steps in which the thread runs and waits this long in all."""
    begun = waits._ran, waits._waited
    for step in range(1, steps + 1):
        waits.observe(begun[0] + ran * step / steps, begun[1] + waited * step / steps)
    return waits.ratio


def test_nothing_is_waited_for_before_anything_is_known() -> None:
    waits = CoreWaits()
    assert waits.ratio == 0.0
    waits.observe(0.0, 0.0)
    assert waits.ratio == 0.0


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0, 3.0])
def test_the_ratio_is_seconds_of_waiting_to_seconds_of_running(ratio: float) -> None:
    assert observed(CoreWaits(), 5 * HORIZON, 5 * HORIZON * ratio) == pytest.approx(ratio)


def test_what_was_waited_long_ago_is_forgotten() -> None:
    waits = CoreWaits()
    assert observed(waits, HORIZON, HORIZON) == pytest.approx(1.0)
    assert 0.2 < observed(waits, HORIZON, 0.0) < 0.5
    assert observed(waits, 9 * HORIZON, 0.0) < 0.001


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a thread waited")
def test_the_system_tells_how_long_this_thread_ran() -> None:
    ran, waited = thread_seconds()
    assert ran > 0.0 and waited >= 0.0
    while (later := thread_seconds())[0] == ran:
        sum(range(10_000))
    assert later[0] > ran and later[1] >= waited


@pytest.mark.parametrize("text", [None, "", "12 34", "0 0 0", "a b c"])
def test_a_system_that_does_not_tell_counts_as_one_without_waits(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr(core_waits, "SCHEDULED", tmp_path / "schedstat")
    assert thread_seconds() == (0.0, 0.0)
