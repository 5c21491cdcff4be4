"""Run passes over several numbers of rows before the first request: the cost of a row decides how
many proposals are verified, and first passes are slow for reasons of their own.
"""

from __future__ import annotations

from functools import partial

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.schedule.cost import Rates
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.types import Context

NAME = bytes(16)  # name of the rehearsal's session
ROWS = (1, 8, 32, 1, 8, 32, 1, 8, 32, 1)  # number of rows in each pass


async def rehearse(thread: ModelThread, sessions: Sessions, most: int) -> None:
    """Run passes of several sizes, at most `most` tokens each, so that the cost model knows what a
    row costs. The step rates start afresh, since steps of requests are not like these passes.
    """
    await thread.run(NAME, partial(rehearsal, sessions, most))
    await thread.run(NAME, partial(start_afresh, thread))  # after the last step was learned from


def start_afresh(thread: ModelThread) -> None:
    """Forget the step rates that the thread has learned."""
    thread.costs.rates = Rates()


def rehearsal(sessions: Sessions, most: int) -> Job:
    """Feed a session of its own, at most `most` rows in a pass, then close it."""
    context, most = Context(NAME, 1, 0, (0,)), min(max(ROWS), most, sessions.context_length)
    with sessions.acquire(context, most - 1) as session:
        for rows in (min(rows, most) for rows in ROWS):
            yield Segment(session.table, 0, (0,) * rows, tree.chain(rows), rows)
    sessions.close(NAME)
