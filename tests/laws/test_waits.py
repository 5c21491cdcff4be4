"""What a decoding job that is alone waits for: proposals that add nodes and should bring more than
the wait costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.schedule.task import Job
from tandem.protos.streams import Decoding, Proposal
from tandem.protos.types import Context, SamplingParams
from tandem.verifier_service.decoding import DecodeJob
from tests.laws.replica import tiny_pool
from tests.laws.verifying import Mailbox, decoding

PROMPT, TOKEN, WRONG = (1, 3), 2, 0
STEP, LAG, GAP, PRICE = 0.04, 0.001, 0.0002, 0.1


@dataclass
class Alone:
    """A job whose text is one token again and again, and a drafter that answers each commit with
    the levels of a chain. A node below the price gets no row.
    """

    token: int = TOKEN  # that the drafter proposes
    chance: float = 0.9  # that it claims
    stream: Mailbox = field(default_factory=Mailbox)
    now: float = 1.0
    number: int = 1  # of the next node
    waits: list[float] = field(default_factory=list)  # the first wait of each step
    job: DecodeJob = field(init=False)
    run: Job = field(init=False)

    def __post_init__(self) -> None:
        sessions = Sessions(tiny_pool(), 64, 2, count(1).__next__, 9.0, lambda: 0.0)
        opening = Decoding(Context(b"s", 1, 0, PROMPT), SamplingParams(temperature=0.0), 60)
        self.job = decoding(sessions, opening, self.stream)
        self.job.clock, self.job.price = lambda: self.now, lambda: PRICE
        self.run = self.job.run()
        next(self.run)

    def left(self) -> float:
        """The seconds that are waited for now."""
        return self.job.wait_seconds(self.now, STEP)

    def hear(self, seconds: float, token: int, parent: int = 0) -> None:
        """A proposal of one node arrives so much later."""
        self.now += seconds
        behind, gain = self.job.proposals.root.position, math.log(self.chance)
        self.stream.inbox.append(
            Proposal(behind, (token,), (parent,), (gain,), self.number, arrived=self.now)
        )
        self.number += 1

    def step(self, levels: int) -> None:
        """A step that ends after the levels have arrived, those that are waited for or not."""
        self.waits.append(self.left())
        for level in range(levels):
            self.hear(GAP if level else LAG, self.token, self.number - 1 if level else 0)
        self.job.ready()
        rows = sum(chance >= PRICE for chance in self.job.chances())
        segment = self.job.segment(rows)
        logits = torch.full((segment.num_logits, 4), -9.0).index_fill(1, torch.tensor(TOKEN), 9.0)
        self.now += STEP
        self.run.send(logits)


@pytest.mark.parametrize(
    ("token", "chance"), [(WRONG, 0.9), (WRONG, 0.02)], ids=["wrong", "no row"]
)
def test_a_punctual_drafter_whose_proposals_bring_nothing_is_soon_not_waited_for(
    token: int, chance: float
) -> None:
    alone = Alone(token, chance)
    for _ in range(30):
        alone.step(levels=2)
    assert alone.waits[2] > 0.0, "it may be good"
    assert max(alone.waits[15:]) <= 0.0


def test_a_punctual_drafter_that_is_right_is_waited_for() -> None:
    alone = Alone()
    for _ in range(20):
        alone.step(levels=1)
    assert min(alone.waits[2:]) > 0.0


def test_levels_after_a_node_that_gets_no_row_are_not_waited_for() -> None:
    waits = []
    for chance in (PRICE / 2, 2 * PRICE):
        alone = Alone()
        alone.step(levels=2)
        alone.chance = chance
        alone.hear(LAG, WRONG)
        waits.append(alone.left())
    assert waits[0] <= 0.0 < waits[1]


def test_a_proposal_that_adds_no_node_begins_no_wait() -> None:
    alone = Alone()
    alone.step(levels=2)
    alone.step(levels=2)
    alone.hear(LAG, TOKEN)
    left = alone.left()
    assert left > 0.0
    for _ in range(2):
        alone.hear(GAP, TOKEN)
        assert alone.left() == pytest.approx(left := left - GAP)
