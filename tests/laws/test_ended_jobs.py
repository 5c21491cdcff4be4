"""What remains of a job that fails or is ended early: no session that holds nothing, and no write
to the KV cache.
"""

from __future__ import annotations

from itertools import count

import pytest

from tandem.engine.cache.session import JobEnded
from tandem.engine.cache.sessions import Sessions
from tandem.protos.errors import Busy, Internal
from tandem.protos.types import Context
from tests.laws.replica import LENGTH, MOST, PAGE, TTL, Message, Replica, tiny_pool

ONE_ID = b"a"


def test_openings_that_fail_before_they_held_a_token_take_nobodys_place() -> None:
    """There are as many openings as there may be sessions, and one more."""
    replica = Replica()
    for number in range(MOST + 1):
        context = Context(bytes([number]), 1, 0, (1, 2))
        with pytest.raises(RuntimeError), replica.at_work(context):
            raise RuntimeError("the pass failed")
        assert (len(replica.sessions), replica.pool.allocated) == (0, 0)
        replica.check_memory()


def test_an_opening_that_fails_leaves_what_its_session_held_before() -> None:
    replica = Replica()
    replica.open(ONE_ID, (1, 2))
    with pytest.raises(RuntimeError), replica.at_work(Context(ONE_ID, 2, 2, (3,), 1)):
        raise RuntimeError("the pass failed")
    assert replica.serve(Message(Context(ONE_ID, 3, 2, (3,), 1), (1, 2, 3))).held == 3


@pytest.mark.parametrize("ended", [JobEnded(0), JobEnded(3), JobEnded(PAGE + 4), Busy("full", 1)])
def test_a_job_that_ends_early_writes_to_no_memory(ended: Exception) -> None:
    """The system hands out memory page by page at the first write, while all sessions wait."""
    pool = tiny_pool()
    sessions = Sessions(pool, LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    for stored in (*pool.keys, *pool.values):
        stored.fill_(7.0)
    with pytest.raises(type(ended)), sessions.acquire(Context(b"s", 1, 0, tuple(range(100))), 9):
        raise ended
    written = sum(int((stored != 7.0).sum()) for stored in (*pool.keys, *pool.values))
    assert written == 0


def test_a_session_whose_model_overflowed_is_dropped_without_a_write() -> None:
    """Kernels skip positions outside a row's own text, whatever they hold."""
    pool, context = tiny_pool(), Context(b"s", 1, 0, tuple(range(100)))
    sessions = Sessions(pool, LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    for stored in (*pool.keys, *pool.values):
        stored.fill_(7.0)
    with pytest.raises(Internal), sessions.acquire(context, 9):
        raise sessions.overflowed(context)
    assert all(bool((stored == 7.0).all()) for stored in (*pool.keys, *pool.values))
    assert (len(sessions), pool.allocated) == (0, 0)
