"""Run forward passes before the first request, so that a replica learns how long its passes take.

The measured duration of a single-token pass lets `orchestrator.links.policy` compare replicas that
have not served any request yet. The cost of a row determines how many proposals are verified, but
it cannot be learned from the first passes of a process, which are unusually slow.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median

import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.engine.model_runner import ModelRunner
from tandem.engine.schedule.cost import AverageStepTimes
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.task import Job
from tandem.protos import tree
from tandem.protos.types import Context

SINGLE_TOKEN_PASSES = 5
NAME = bytes(16)  # name of the session that the warm-up feeds
ROWS = (1, 8, 32, 1, 8, 32, 1, 8, 32, 1)  # number of rows in each pass


@torch.inference_mode()
def single_token_seconds(runner: ModelRunner) -> float:
    """Return the duration of a forward pass over one token, in seconds: the median of
    SINGLE_TOKEN_PASSES passes.
    """
    table = runner.pool.allocate(1)
    assert table, "no session uses memory yet, so one page must be free"
    seconds = []
    try:
        for _ in range(SINGLE_TOKEN_PASSES):
            began = time.perf_counter()
            # copying the logits to the CPU waits until a GPU has finished
            runner([Segment(table, 0, (0,), tree.chain(1), 1)])[0].cpu()
            seconds.append(time.perf_counter() - began)
    finally:
        runner.pool.release(table)
    return median(seconds)


async def warm_up(thread: ModelThread, sessions: Sessions, most: int) -> None:
    """Run forward passes of several sizes, at most `most` tokens each, so that the cost model
    learns what a row costs. Afterwards, the average step times are reset, because steps of requests
    differ from these passes.
    """
    await thread.run(NAME, partial(warm_up_job, sessions, most))
    # waits until the thread has learned from the last step
    await thread.run(NAME, partial(forget_averages, thread))


def forget_averages(thread: ModelThread) -> None:
    """Reset the average step times that the thread has learned."""
    thread.costs.averages = AverageStepTimes()


def warm_up_job(sessions: Sessions, most: int) -> Job:
    """Feed a temporary session, with at most `most` rows per pass, and then close the session."""
    context, most = Context(NAME, 1, 0, (0,)), min(max(ROWS), most, sessions.context_length)
    with sessions.acquire(context, most - 1) as session:
        for rows in (min(rows, most) for rows in ROWS):
            yield Segment(session.table, 0, (0,) * rows, tree.chain(rows), rows)
    sessions.close(NAME)
