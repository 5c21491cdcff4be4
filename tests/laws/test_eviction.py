"""Which sessions lose their memory when there is not enough: never one at work, and a caller that
keeps asking is served in the end.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.sessions import IDLE_SECONDS, LONGEST_RETRY_SECONDS
from tandem.protos.errors import Busy
from tandem.protos.types import NO_DRAFT, Context, SamplingParams
from tests.laws.replica import BLOCKS, LENGTH, TTL, Message, Replica, mark
from tests.laws.verifying import verify

MANY = 99
names = st.sampled_from([bytes([letter]) for letter in b"abcd"])


def filled(closed: tuple[bool, ...] = (False,) * BLOCKS, most: int = MANY) -> Replica:
    """Return a full pool: sessions 0, 1, ... of one page each, used in this order, a second apart.
    All sessions have settled.
    """
    replica = Replica(blocks=len(closed), most=most)
    for number, is_closed in enumerate(closed):
        replica.open(bytes([number]), tuple(range(PAGE)), client=bytes([100 + number]))
        if is_closed:
            replica.close(bytes([number]))
        replica.now += 1.0
    replica.now += IDLE_SECONDS - 1.0
    return replica


def alive(replica: Replica) -> list[int]:
    """Return which of the first sessions still have their memory."""
    return [number for number in range(BLOCKS) if replica.holds(bytes([number]))]


@given(st.tuples(*[st.booleans()] * BLOCKS), st.permutations(range(BLOCKS)))
def test_what_nobody_holds_goes_first_then_sessions_used_least_recently(
    closes: tuple[bool, ...], order: list[int]
) -> None:
    replica = filled()
    for number in order:
        context = Context(bytes([number]), 2, PAGE - 1, (1,), number + 1)
        with replica.at_work(context) as session:
            replica.sessions.keep(session, context, ())
        if closes[number]:
            replica.close(bytes([number]))
        replica.now += 1.0
    replica.now += IDLE_SECONDS - 1.0
    left = [number for number in order if not closes[number]]
    assert len(replica.sessions) == len(left)
    for gone in range(1, BLOCKS + 1):
        replica.open(bytes([200 + gone]), (1,), client=bytes([gone]))
        evicted = max(0, gone - sum(closes))
        assert alive(replica) == sorted(left[evicted:])
        assert replica.sessions.counts.evicted == evicted
    for number in range(BLOCKS):
        replica.close(bytes([201 + number]))


@pytest.mark.parametrize("growing", [False, True])
def test_sessions_at_work_or_not_yet_settled_are_never_evicted(growing: bool) -> None:
    """All sessions are at work except the last, which was used lately, and the one that may
    grow.
    """
    replica = filled()
    wanted = Context(b"\2", 2, 0, (1,) * LENGTH) if growing else Context(b"new", 1, 0, (1,))
    with ExitStack() as work:
        for number in range(BLOCKS - 1 - growing):
            work.enter_context(replica.at_work(Context(bytes([number]), 2, 0, (1,))))
        replica.serve(Message(Context(b"\3", 2, 0, (1,)), (1,)))
        replica.now += IDLE_SECONDS - 0.1
        with pytest.raises(Busy, match="too little memory") as refused, replica.at_work(wanted):
            pass
        assert 0 < refused.value.retry_after < IDLE_SECONDS
        assert replica.sessions.counts.evicted == 0
        assert alive(replica) == ([0, 1, 3] if growing else [0, 1, 2, 3])
        replica.now += 0.1
        with replica.at_work(wanted):
            assert set(alive(replica)) - {2} == {0, 1}
    replica.check_memory()


def test_a_long_call_ends_the_wait_of_others_only_when_it_has_settled() -> None:
    replica = Replica(blocks=2, most=1)
    with replica.at_work(Context(b"a", 1, 0, (1,))):
        replica.now += 100.0
    with pytest.raises(Busy, match="all 1 sessions"):
        replica.open(b"b", (1,))
    replica.now += IDLE_SECONDS
    replica.open(b"b", (1,))
    assert (len(replica.sessions), replica.sessions.counts.evicted) == (1, 1)


def test_whoever_is_told_busy_has_driven_nobody_out() -> None:
    """A refused session that evicted others would come back and evict the next one, for as long as
    it does not fit.
    """
    replica = filled()
    with ExitStack() as work:
        for number in (1, 2, 3):
            work.enter_context(replica.at_work(Context(bytes([number]), 2, 0, (1,))))
        with pytest.raises(Busy):
            replica.open(b"new", tuple(range(LENGTH)))
        with pytest.raises(Busy), replica.at_work(Context(b"\0", 2, 0, (1,) * LENGTH), PAGE):
            pass
        assert alive(replica) == [1, 2, 3], "it gave up its own"
    assert replica.sessions.counts.evicted == 0


@given(
    st.lists(
        st.tuples(names, st.integers(1, LENGTH), st.integers(0, LENGTH), st.booleans()),
        max_size=30,
    )
)
def test_once_all_have_settled_everybody_is_served(
    calls: list[tuple[bytes, int, int, bool]],
) -> None:
    """The pool has just enough memory for the longest session, wherever the others lie."""
    replica = Replica(blocks=2 * LENGTH // PAGE, most=3)
    for turn, (name, length, nodes, closes) in enumerate(calls, start=1):
        replica.now += IDLE_SECONDS
        context = Context(name, turn, 0, (7,) * length, client=b"x")
        with replica.at_work(context, nodes) as session:
            replica._write(session, session.length, context.tokens[session.length :], mark(b"x"))
            replica.sessions.keep(session, context, ())
        if closes:
            replica.close(name)
        replica.check_memory()


def test_a_full_house_evicts_no_text_whose_memory_nobody_wants() -> None:
    """The limit counts open sessions; cached texts do not count."""
    replica = Replica(blocks=8, most=1)
    said = tuple(range(PAGE))
    replica.open(b"a", said, client=b"x")
    replica.close(b"a")
    replica.open(b"b", (1,))
    replica.now += IDLE_SECONDS
    assert replica.open(b"c", (*said, 5), client=b"x").reused == PAGE
    assert not replica.holds(b"b")


def test_the_more_calls_are_refused_the_longer_they_are_told_to_wait() -> None:
    """The pause grows up to a limit, until there is memory again."""
    replica, waits = Replica(most=1), list[float]()
    for turn in (1, 2):
        replica.open(b"a", (1,), turn=turn)
        for _ in range(500):
            with pytest.raises(Busy) as refused:
                replica.open(b"b", (1,))
            waits.append(refused.value.retry_after)
        replica.close(b"a")
    assert waits[:500] == waits[500:] == sorted(waits[:500])
    assert 0 < waits[0] < waits[9] < waits[499] == LONGEST_RETRY_SECONDS


def test_a_call_that_is_given_up_leaves_a_session_that_can_be_evicted() -> None:
    replica = Replica(blocks=1)
    replica.open(b"a", (1,))
    with torch.inference_mode():
        job = verify(replica.sessions, Context(b"a", 2, 1, (2,), 1), NO_DRAFT, SamplingParams())
        next(job).ready()
        replica.now += 10 * TTL
        replica.sessions.expire()
        with pytest.raises(Busy):
            replica.open(b"b", (1,))
        job.close()
    replica.now += IDLE_SECONDS
    assert replica.open(b"b", (1,)).held == 1
    assert replica.sessions.counts.evicted == 1


def test_memory_in_pieces_is_memory() -> None:
    """No session is refused or moved because of where the others lie."""
    replica = filled()
    said = tuple(range(PAGE))
    pages = [replica.opened[bytes([number])].table.pages[0] for number in range(BLOCKS)]
    left, own, right, _ = sorted(range(BLOCKS), key=pages.__getitem__)
    name, epoch = bytes([own]), own + 1
    with replica.at_work(Context(name, 2, PAGE - 1, (9,), epoch)) as session:
        replica.close(bytes([left]))
        replica.close(bytes([right]))
        assert replica.open(b"new", tuple(range(LENGTH))).held == LENGTH
        assert session.table.pages == [pages[own]]
        assert replica.held(session) == said[: PAGE - 1]
        replica.check_memory()
    replica.serve(Message(Context(name, 3, PAGE - 1, (5,), epoch), (*said[: PAGE - 1], 5)))
