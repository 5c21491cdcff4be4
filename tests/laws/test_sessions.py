"""Sessions, case by case: a refused call changes nothing, and an ended session gives its memory
back.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from itertools import count

import pytest
import torch

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.session import JobEnded
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.protos import tree
from tandem.protos.errors import Busy, Internal, InvalidRequest, SessionMiss, StaleTurn
from tandem.protos.types import Context
from tests.laws.replica import BLOCKS, LENGTH, TTL, Message, Replica, tiny_pool

ONE_ID = b"a"


@pytest.mark.parametrize("client", [b"", b"x"])
def test_a_late_opening_call_after_a_close_is_not_mistaken_for_the_session(client: bytes) -> None:
    """A late opening may be refused or served; the next call must not take its session for its
    own.
    """
    replica = Replica()
    said = tuple(range(PAGE))
    opening = Message(Context(ONE_ID, 1, 0, said, client=client), said)
    replica.serve(opening, (3, 4), (0, 1))
    replica.serve(Message(Context(ONE_ID, 2, PAGE, (5,), 1), (*said, 5)))
    replica.close(ONE_ID)
    with suppress(StaleTurn):
        replica.serve(opening, (3, 4), (0, 1))
    with pytest.raises(SessionMiss):
        replica.serve(Message(Context(ONE_ID, 3, PAGE + 1, (9,), 1), (*said, 5, 9)))


@pytest.mark.parametrize(
    "context", [Context(ONE_ID, 1, 3, (9,), 1), Context(ONE_ID, 1, 0, (9,), 77)]
)
def test_what_is_not_held_is_a_miss_that_opens_nothing(context: Context) -> None:
    replica = Replica()
    with pytest.raises(SessionMiss), replica.at_work(context):
        pass
    assert (len(replica.sessions), replica.pool.allocated, replica.sessions.counts.misses) == (
        0,
        0,
        1,
    )


def test_a_base_beyond_what_is_held_is_a_miss_that_changes_nothing() -> None:
    replica = Replica()
    replica.open(ONE_ID, (1, 2))
    session = replica.opened[ONE_ID]
    with pytest.raises(SessionMiss), replica.at_work(Context(ONE_ID, 2, 3, (9,), 1)):
        pass
    assert (session.length, session.turn, session.active) == (2, 1, False)


def test_expiry_spares_sessions_at_work_and_sessions_in_use() -> None:
    replica = Replica()
    replica.open(ONE_ID, (1,))
    replica.now = TTL
    replica.open(b"b", (1,))
    with replica.at_work(Context(ONE_ID, 2, 1, (2,), 1)):
        replica.expire(TTL)  # b is idle for as long as it may be, a for longer
        assert (len(replica.sessions), replica.sessions.counts.expired) == (2, 0)
        replica.expire(0.1)
        assert (len(replica.sessions), replica.sessions.counts.expired) == (1, 1)
    replica.expire(TTL)  # the time counts from the end of its work
    assert len(replica.sessions) == 1
    replica.expire(0.1)
    assert (len(replica.sessions), replica.sessions.usage) == (0, 0)
    with pytest.raises(SessionMiss):
        replica.serve(Message(Context(ONE_ID, 3, 1, (2,), 1), (1, 2)))


def test_a_session_for_which_a_call_waits_is_neither_reclaimed_nor_evicted() -> None:
    """A session for which a call waits is kept, however long the step takes that the call waits
    for.
    """
    replica = Replica(blocks=1)
    replica.open(ONE_ID, (1, 2))
    replica.now += 2 * TTL
    replica.sessions.expire([ONE_ID, b"unknown"])
    with pytest.raises(Busy):
        replica.open(b"b", (1,))
    assert replica.serve(Message(Context(ONE_ID, 2, 2, (9,), 1), (1, 2, 9))).held == 3


def test_a_close_ends_the_session_at_its_turn_and_spares_one_that_was_taken_over() -> None:
    """The close of a stream may come after another stream has opened its session again."""
    replica = Replica()
    replica.open(ONE_ID, (1, 2))
    replica.serve(Message(Context(ONE_ID, 2, 2, (9,), 1), (1, 2, 9)))
    replica.sessions.close(ONE_ID, turn=1)
    assert len(replica.sessions) == 1
    replica.sessions.close(ONE_ID, turn=2)
    assert len(replica.sessions) == 0


def test_a_full_house_is_busy_until_a_session_is_closed() -> None:
    replica = Replica(most=1)
    replica.open(ONE_ID, (1,))
    with pytest.raises(Busy, match="all 1 sessions") as refused:
        replica.open(b"b", (1,))
    assert refused.value.retry_after > 0
    assert (len(replica.sessions), replica.pool.allocated) == (1, PAGE)
    for _ in range(2):
        replica.close(ONE_ID)
    assert (len(replica.sessions), replica.sessions.usage) == (0, 0)
    assert replica.open(b"b", (1,)).held == 1


def test_a_context_above_the_limit_is_refused_with_both_numbers() -> None:
    sessions = Sessions(tiny_pool(), 8, 2, lambda: 1, TTL, lambda: 0.0)
    with (
        pytest.raises(
            InvalidRequest, match=r"context\.tokens reach token 9, above the context length 8"
        ) as refused,
        sessions.acquire(Context(ONE_ID, 1, 0, tuple(range(9))), 0),
    ):
        pass
    assert [violation.field for violation in refused.value.violations] == ["context.tokens"]
    assert len(sessions) == 0


def test_keeping_twice_keeps_the_context_once() -> None:
    """A drafter keeps in this order: the context first, then its own proposals."""
    replica = Replica()
    replica.open(ONE_ID, (1, 2))
    context = Context(ONE_ID, 2, 1, (5, 6), 1)
    with replica.at_work(context, 2) as session:
        assert replica.sessions.keep(session, context, ()) == 3
        assert replica.sessions.keep(session, context, (7, 8), (0,)) == 4
        assert tuple(session.tokens) == (1, 5, 6, 7)


def test_a_call_that_ends_early_leaves_its_base_and_nothing_else() -> None:
    replica = Replica()
    replica.serve(Message(Context(ONE_ID, 1, 0, (1, 2)), (1, 2)), (3, 4), (0, 1))
    with replica.at_work(Context(ONE_ID, 2, 2, (5,), 1)) as session:
        assert (session.length, session.active) == (2, True)
    assert not session.active
    with pytest.raises(SessionMiss), replica.at_work(Context(ONE_ID, 3, 3, (6,), 1)):
        pass


def test_usage_counts_pages_that_sessions_hold_and_each_once() -> None:
    """As in vLLM, cached pages that no session uses count as free."""
    replica = Replica(most=3)
    said = tuple(range(PAGE))
    replica.open(ONE_ID, said)
    assert (replica.sessions.usage, replica.sessions.prefix_usage) == (1 / BLOCKS, 0)
    replica.close(ONE_ID)
    assert (replica.sessions.usage, replica.sessions.prefix_usage) == (0, 1 / BLOCKS)
    for name in (b"b", b"c"):
        replica.open(name, (*said, 1))
    assert (replica.sessions.usage, replica.sessions.prefix_usage) == (3 / BLOCKS, 0)


@pytest.mark.parametrize("epoch", [0, 7])
def test_who_builds_on_cached_tokens_must_know_the_sessions_epoch(epoch: int) -> None:
    replica = Replica()
    replica.open(ONE_ID, (1, 2))
    with pytest.raises(SessionMiss), replica.at_work(Context(ONE_ID, 2, 2, (5,), epoch)):
        pass
    assert replica.serve(Message(Context(ONE_ID, 3, 2, (5,), 1), (1, 2, 5))).held == 3


def test_an_opening_call_starts_an_open_session_again() -> None:
    replica = Replica()
    first = replica.open(ONE_ID, (1, 2))
    again = replica.open(ONE_ID, (1, 2, 3), turn=2)
    assert (again.held, again.epoch, len(replica.sessions)) == (3, first.epoch, 1)


@pytest.mark.parametrize("client", [b"", b"x"])
def test_a_session_whose_model_overflowed_is_forgotten_at_once(client: bytes) -> None:
    """No other session may start with its pages."""
    pool = tiny_pool()
    sessions = Sessions(pool, LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    said = tuple(range(PAGE + 1))
    context = Context(b"s", 1, 0, said, client=client)
    segment = tree.chain(len(said))
    with torch.inference_mode(), sessions.acquire(context, 0) as held:
        sessions.keep(held, context, ())
        feeding = sessions.feed(context, Segment(held.table, 0, said, segment, 1))
        next(feeding)
        for stored in (*pool.keys, *pool.values):
            stored[held.table.slots(0, held.table.capacity)] = float("nan")
        with pytest.raises(Internal, match="overflowed"):
            feeding.send(torch.tensor([[1.0, float("nan")]]))
    assert (len(sessions), pool.allocated) == (0, 0)
    with sessions.acquire(Context(b"t", 1, 0, said, client=client), 0) as next_one:
        assert next_one.length == 0


def test_sessions_may_be_counted_while_others_come_and_go() -> None:
    """Metrics and descriptions are read on other threads than the model thread."""
    replica, done, errors = Replica(blocks=40, most=40), threading.Event(), list[Exception]()
    for number in range(30):
        replica.open(bytes([number]), (1,))

    def watch() -> None:
        try:
            while not done.is_set():
                assert 30 <= len(replica.sessions) <= 32 and 0 < replica.sessions.usage <= 1
        except Exception as error:
            errors.append(error)

    watcher, interval = threading.Thread(target=watch), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    watcher.start()
    try:
        for turn in range(1, 4000):
            for name in (b"a", b"b"):
                with replica.at_work(Context(name, turn, 0, (1,))):
                    pass
            replica.close(b"a")
            replica.close(b"b")
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(interval)
    assert not errors


@pytest.mark.parametrize("where", [0, PAGE + 3])
def test_of_a_prompt_that_ends_early_nothing_stays_if_the_model_overflowed(where: int) -> None:
    pool, prompt = tiny_pool(), tuple(range(PAGE + 9))
    sessions = Sessions(pool, LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    context = Context(b"s", 1, 0, prompt, client=b"x")
    with pytest.raises(JobEnded), sessions.acquire(context, 0) as held:
        for stored in (*pool.keys, *pool.values):
            stored[held.table.slots(where, where + 1)] = float("inf")
        raise JobEnded(PAGE + 4)
    sessions.close(b"s")
    with sessions.acquire(Context(b"t", 1, 0, prompt, client=b"x"), 0) as held:
        assert not held.length
