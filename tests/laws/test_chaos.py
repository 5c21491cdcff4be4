"""The judge of a chaos run finds each kind of violation."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tandem.benchmarks.chaos import history
from tandem.benchmarks.chaos.history import (
    Asked,
    Ended,
    Event,
    Healed,
    Received,
    Struck,
    Truth,
    judge,
)
from tandem.benchmarks.chaos.plan import Kind, faults
from tandem.protos.errors import Unusable

GOOD: list[Event] = [
    Truth(0, (1, 2, 3, 4)),
    Asked(0.0, 7, 0),
    Received(1.0, 7, (1, 2), 2),
    Struck(1.5, "kill verifier", "kill verifier 0"),
    Received(4.0, 7, (3,), 3),
    Received(4.5, 7, (4,), 4),
    Ended(5.0, 7),
]


def test_a_stream_with_a_pause_is_flawless() -> None:
    verdict = judge(GOOD)
    assert verdict.flawless
    assert (verdict.faults, verdict.streams, verdict.tokens) == (1, 1, 4)
    assert verdict.gaps == {"none yet": 1.0, "kill verifier": 3.0}
    second = Struck(3.0, "slow drafter", "slow drafter 1")
    gaps = judge([*GOOD[:4], second, *GOOD[4:]]).gaps
    assert gaps == {"none yet": 1.0, "kill verifier, then others": 3.0, "slow drafter": 0.5}


@pytest.mark.parametrize(
    ("faults", "healthy"),
    [
        ([], 0.5),
        ([Healed(2.0)], 2.0),
        ([Healed(3.0)], 1.0),
        ([Healed(2.0), Struck(3.5, "kill drafter", "")], 1.5),
        ([Healed(1.75), Struck(2.0, "kill drafter", ""), Healed(3.5)], 0.5),
        ([Healed(1.75), Struck(2.0, "kill drafter", ""), Healed(9.0)], 0.5),
    ],
    ids=str,
)
def test_how_long_a_stream_waits_while_no_fault_lasts(faults: list[Event], healthy: float) -> None:
    gaps = judge([*GOOD[:4], *faults, *GOOD[4:]]).healthy_gaps
    longest = max(seconds for what, seconds in gaps.items() if what != "none yet")
    assert longest == healthy


@pytest.mark.parametrize(
    ("place", "event", "what"),
    [
        (4, Received(4.0, 7, (9,), 3), "changed"),
        (4, Received(4.0, 7, (2, 3), 3), "duplicated"),
        (4, Received(4.0, 7, (), 3), "lost"),
        (5, Received(4.5, 7, (), 3), "lost"),
        (6, Ended(5.0, 7, "UNAVAILABLE"), "errors"),
    ],
)
def test_every_flaw_is_found(place: int, event: Event, what: str) -> None:
    verdict = judge([*GOOD[:place], event, *GOOD[place + 1 :]])
    assert not verdict.flawless
    assert getattr(verdict, what)


def test_a_history_can_be_judged_again(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    with file.open("w") as lines:
        for event in GOOD:
            history.write(event, lines)
    assert list(history.read(file)) == GOOD
    assert judge(history.read(file)) == judge(GOOD)


@pytest.mark.parametrize("line", ["x", "3", '{"kind": "odd"}', '{"kind": "healed"}', "\xff"])
def test_what_is_no_history_is_refused_in_one_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(f'{{"kind": "healed", "at": 1.0}}\n{line}\n', encoding="latin-1")
    with pytest.raises(Unusable, match=r"history\.jsonl is not the history of a chaos run"):
        list(history.read(file))
    with pytest.raises(Unusable, match="nowhere: No such file"):
        list(history.read(tmp_path / "nowhere"))


def test_a_seed_gives_the_same_faults_and_all_kinds() -> None:
    members = {"verifier": 2, "drafter": 1, "cell": 2}
    some = list(islice(faults(3, members, list(Kind)), 500))
    assert some == list(islice(faults(3, members, list(Kind)), 500))
    assert some != list(islice(faults(4, members, list(Kind)), 500))
    assert {(fault.kind, fault.role) for fault in some} == {
        (kind, role)
        for kind in Kind
        for role in members
        if role != "cell" or kind not in (Kind.SLOW, Kind.CRAWL)
    }
    assert all(fault.index < members[fault.role] for fault in some)
    assert str(replace(some[0], kind=Kind.STOP, seconds=2.0)).endswith("2.0 s")
