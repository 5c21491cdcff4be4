"""When sessions that grow do not all fit, one gives up its memory for the others."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.sessions import RETRY_SECONDS
from tandem.protos.errors import Busy
from tandem.protos.streams import Decoding, Proposal
from tandem.protos.types import Context, SamplingParams
from tests.laws.replica import LENGTH, Replica
from tests.laws.verifying import Mailbox, decoding


def test_of_sessions_that_grow_at_once_the_one_that_finds_no_memory_makes_space() -> None:
    """The preempted session may come back when the others are done, and finds what is still cached
    of its text.
    """
    replica = Replica(blocks=2)
    with replica.at_work(Context(b"a", 1, 0, (1,))) as winner:
        with pytest.raises(Busy), replica.at_work(Context(b"b", 1, 0, (2,))) as loser:
            replica._write(loser, 0, (2,), 0)
            replica.sessions.keep(loser, Context(b"b", 1, 0, (2,)), ())
            replica.sessions.reserve(loser, LENGTH)
        assert (loser.table.capacity, len(replica.sessions)) == (0, 1)
        assert replica.sessions.prefix_usage == 0.5, "nobody has needed it yet"
        replica.sessions.reserve(winner, LENGTH)
        assert winner.table.capacity == LENGTH
        replica.check_memory()
        with pytest.raises(Busy):
            replica.open(b"b", (2, 2), turn=2)
    replica.close(b"a")
    assert replica.open(b"b", (2, 2), turn=3).held == 2


@pytest.mark.parametrize("begun", [True, False])
def test_sessions_that_all_wait_to_be_opened_again_do_not_wait_for_ever(begun: bool) -> None:
    """One session lost its caller while it was at work; the other one did too, or found no
    memory.
    """
    replica = Replica(blocks=2)
    for name in (b"a", b"b"):
        replica.open(name, (1,))
    if begun:
        with pytest.raises(Busy), replica.at_work(Context(b"a", 2, 0, (1,))) as session:
            replica.sessions.reserve(session, LENGTH)
    served = 0
    for turn in range(3, 6):
        for name in (b"a", b"b"):
            with suppress(Busy):
                replica.sessions.expire([name])
                served += replica.open(name, tuple(range(LENGTH)), turn=turn).held == LENGTH
                replica.close(name)
        replica.now += 1.0
    assert served >= 2
    replica.check_memory()


def test_a_session_whose_rows_find_no_memory_decodes_without_them_and_keeps_what_it_has() -> None:
    """A session is not refused for lack of memory that it can do without."""
    replica, said, rows = Replica(blocks=2, most=3), (1,) * (PAGE - 4), 9
    replica.open(b"other", (1,))
    stream = Mailbox()
    opening = Decoding(Context(b"a", 1, 0, said), SamplingParams(), LENGTH)
    job = decoding(replica.sessions, opening, stream)
    with torch.inference_mode():
        running = job.run()
        next(running)
        gains = (-0.05,) * rows
        stream.inbox.append(Proposal(len(said), (7,) * rows, tuple(range(rows)), gains))
        assert job.ready() is not None and len(list(job.chances())) == rows
        assert len(job.segment(rows).tokens) == PAGE, "as many as there is memory for"
        with pytest.raises(Busy) as refusal:
            replica.open(b"new", (1,))
        assert refusal.value.retry_after == RETRY_SECONDS, "the first call that was refused"
        running.close()
