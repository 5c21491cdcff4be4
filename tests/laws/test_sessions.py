"""Sessions, case by case: what is refused changes nothing, and what ends gives its slot back."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from engine.plan import Segment
from engine.sessions import Session, Sessions
from protos.errors import Busy, Internal, InvalidRequest, SessionMiss, StaleTurn
from protos.types import Context
from tests.laws.replica import LENGTH, SLOTS, TTL, Message, Replica, tiny_cache

ONE_ID = b"a"


def opened(replica: Replica, *tokens: int) -> Session:
    """A session that holds the tokens."""
    return replica.sessions.extend(Context(ONE_ID, 1, 0, tokens))


def test_a_late_duplicate_is_refused_and_changes_nothing() -> None:
    replica = Replica()
    first = Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2))
    replica.serve(first, (), ())
    replica.serve(Message(Context(ONE_ID, 2, 2, (5, 6), 1), (1, 2, 5, 6)), (), ())
    with pytest.raises(StaleTurn):
        replica.serve(first, (7, 8), (0, 1))
    assert replica.sessions.stale == 1
    replica.serve(Message(Context(ONE_ID, 3, 4, (9,), 1), (1, 2, 5, 6, 9)), (), ())


def test_a_late_opening_call_after_an_eviction_is_not_mistaken_for_the_session() -> None:
    """It may be refused or served; the next call must not take what it left for its own."""
    replica = Replica()
    opening = Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2))
    replica.serve(opening, (3, 4), (0, 1))
    replica.serve(Message(Context(ONE_ID, 2, 2, (5,), 1), (1, 2, 5)), (), ())
    replica.close(ONE_ID)
    with suppress(StaleTurn):
        replica.serve(opening, (3, 4), (0, 1))
    with pytest.raises(SessionMiss):
        replica.serve(Message(Context(ONE_ID, 3, 3, (9,), 1), (1, 2, 5, 9)), (), ())


def test_a_late_opening_call_to_another_process_is_not_mistaken_for_the_session() -> None:
    replica = Replica()
    opening = Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2))
    replica.serve(opening, (3, 4), (0, 1))
    replica.restart()
    replica.serve(opening, (3, 4), (0, 1))
    with pytest.raises(SessionMiss):
        replica.serve(Message(Context(ONE_ID, 2, 3, (9,), 1), (1, 2, 5, 9)), (), ())


@pytest.mark.parametrize(
    "context", [Context(ONE_ID, 1, 3, (9,), 1), Context(ONE_ID, 1, 0, (9,), 77)]
)
def test_what_is_not_held_is_a_miss_that_opens_nothing(context: Context) -> None:
    replica = Replica()
    with pytest.raises(SessionMiss):
        replica.sessions.extend(context)
    assert (len(replica.sessions), replica.cache.free, replica.sessions.misses) == (0, SLOTS, 1)


def test_a_base_beyond_what_is_held_is_a_miss_that_changes_nothing() -> None:
    replica = Replica()
    session = opened(replica, 1, 2)
    replica.sessions.keep(session, 2)
    with pytest.raises(SessionMiss):
        replica.sessions.extend(Context(ONE_ID, 2, 3, (9,), 1))
    assert (session.length, session.turn) == (2, 1)


def test_expiry_spares_sessions_at_work_and_sessions_in_use() -> None:
    replica = Replica()
    opened(replica, 1)
    replica.now = TTL
    replica.sessions.extend(Context(b"b", 1, 0, (1,)))
    replica.now = TTL + 1
    replica.sessions.expire(lambda name: name == ONE_ID)
    assert (len(replica.sessions), replica.sessions.expired) == (2, 0)
    replica.sessions.expire(lambda _: False)
    assert (len(replica.sessions), replica.sessions.expired) == (1, 1)
    with pytest.raises(SessionMiss):
        replica.sessions.extend(Context(ONE_ID, 2, 1, (2,), 1))


def test_a_full_cache_is_busy_until_a_session_is_closed() -> None:
    sessions = Sessions(tiny_cache(slots=1), LENGTH, lambda: 1, TTL, lambda: 0.0)
    sessions.extend(Context(ONE_ID, 1, 0, (1,)))
    with pytest.raises(Busy, match="all 1 sessions"):
        sessions.extend(Context(b"b", 1, 0, (1,)))
    assert len(sessions) == 1
    for _ in range(2):
        sessions.close(ONE_ID)
    assert sessions.extend(Context(b"b", 1, 0, (1,))).length == 0


def test_a_context_above_the_limit_is_refused_with_both_numbers() -> None:
    sessions = Sessions(tiny_cache(), 8, lambda: 1, TTL, lambda: 0.0)
    with pytest.raises(
        InvalidRequest, match=r"context\.tokens reach token 9, above the context of 8"
    ) as refused:
        sessions.extend(Context(ONE_ID, 1, 0, tuple(range(9))))
    assert [violation.field for violation in refused.value.violations] == ["context.tokens"]
    assert len(sessions) == 0


def test_a_kept_path_is_moved_behind_the_context_and_rejected_rows_are_dead() -> None:
    replica = Replica()
    answer = replica.serve(Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2)), (3, 4, 5, 6), (1, 3))
    assert answer.held == 4
    session = replica.sessions.extend(Context(ONE_ID, 2, 4, (9,), 1))
    assert replica.held(session, 4) == (1, 2, 4, 6)


def test_a_call_that_ends_early_leaves_its_base_and_nothing_else() -> None:
    replica = Replica()
    replica.serve(Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2)), (3, 4), (0, 1))
    assert replica.sessions.extend(Context(ONE_ID, 2, 2, (5,), 1)).length == 2
    with pytest.raises(SessionMiss):
        replica.sessions.extend(Context(ONE_ID, 3, 3, (6,), 1))


@pytest.mark.parametrize("epoch", [0, 7])
def test_who_builds_on_cached_tokens_must_know_the_sessions_epoch(epoch: int) -> None:
    replica = Replica()
    replica.serve(Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2)), (), ())
    with pytest.raises(SessionMiss):
        replica.sessions.extend(Context(ONE_ID, 2, 2, (5,), epoch))
    assert replica.serve(Message(Context(ONE_ID, 3, 2, (5,), 1), (1, 2, 5)), (), ()).held == 3


def test_an_opening_call_starts_an_open_session_again() -> None:
    replica = Replica()
    first = replica.serve(Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2)), (), ())
    again = replica.serve(Message(Context(ONE_ID, 2, 0, (1, 2, 3)), (1, 2, 3)), (), ())
    assert (again.held, again.epoch, len(replica.sessions)) == (3, first.epoch, 1)


def test_a_session_whose_model_overflowed_is_forgotten() -> None:
    cache = tiny_cache()
    sessions = Sessions(cache, LENGTH, lambda: 9, TTL, lambda: 0.0)
    context = Context(b"s" * 16, 1, 0, (1, 2, 3))
    held = sessions.extend(context)
    feeding = sessions.feed(context, Segment(held.slot, 0, (1, 2, 3), (-1, 0, 1), 1))
    next(feeding)
    with pytest.raises(Internal, match="overflowed"):
        feeding.send(torch.tensor([[1.0, float("nan")]]))
    assert (len(sessions), cache.free) == (0, SLOTS)
