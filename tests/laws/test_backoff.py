"""A drafter whose proposals gain nothing gets a pause; it is sent all that it missed later, and is
tried again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tandem.orchestrator.rounds.backoff import PATIENCE, PAUSES, DraftBackoff
from tandem.protos.streams import Commit

STEP = 0.02  # seconds
LONGEST = PAUSES[1]


class Course:
    """A text, step by step: what each step accepts, and what its drafter is sent when. A proposal
    comes `answers` seconds after each message to the drafter.
    """

    def __init__(
        self, accepted: Callable[[float], int], answers: float = 0.03, round_trip: float = 0.0
    ) -> None:
        self.backoff, self.sent = DraftBackoff(), list[tuple[float, Commit]]()
        self.text: list[int] = []
        self.accepted, self._answers, self._round_trip = accepted, answers, round_trip

    def run(self, seconds: float) -> Course:
        """So long."""
        answered = 0
        for step in range(round(seconds / STEP)):
            now, start = step * STEP, len(self.text)
            tokens = tuple(range(start, start + 1 + self.accepted(now)))
            self.text += tokens
            while answered < len(self.sent) and self.sent[answered][0] + self._answers <= now:
                answered += 1
                self.backoff.arrived = True
            commit = Commit(start, tokens, accepted=len(tokens) - 1)
            if sent := self.backoff.stepped(commit, now, self._round_trip):
                self.sent.append((now, sent))
        return self

    def silences(self, since: float = 0.0) -> Iterator[float]:
        """Return the seconds between two messages to the drafter."""
        times = (now for now, _ in self.sent if now >= since)
        return (after - before for before, after in pairwise(times))


def test_a_drafter_that_brings_anything_worth_having_is_sent_every_step() -> None:
    rng = random.Random(0)
    course = Course(lambda now: rng.random() < 6 / PATIENCE).run(60)
    assert max(course.silences()) < 2 * STEP


def test_one_that_is_silent_is_sent_every_step() -> None:
    """A silent drafter may be reading a long text, or may find that drafting is not worth its
    time.
    """
    course = Course(lambda now: 0, answers=1000.0).run(60)
    assert max(course.silences()) < 2 * STEP


@pytest.mark.parametrize(("answers", "most"), [(0.03, 0.2), (0.4, 0.3), (2.0, 0.5)])
def test_one_that_brings_nothing_is_sent_little_but_never_nothing_for_long(
    answers: float, most: float
) -> None:
    course = Course(lambda now: 0, answers).run(60)
    assert len(course.sent) < most * 60 / STEP
    assert sum(each > 2 * STEP for each in course.silences()) > 10
    assert max(course.silences()) <= LONGEST + 2 * STEP


def test_a_trial_after_a_pause_lasts_half_as_many_steps_as_the_first() -> None:
    course, lengths = Course(lambda now: 0, answers=0.0).run(20), [1]
    for silence in course.silences():
        if silence > 2 * STEP:
            lengths.append(0)
        lengths[-1] += 1
    first, *trials = lengths[:-1]
    assert abs(first - PATIENCE) <= 2 and len(trials) > 3
    assert all(abs(trial - PATIENCE // 2) <= 2 for trial in trials)


def test_it_is_sent_every_token_once_and_in_order() -> None:
    rng = random.Random(1)
    course = Course(lambda now: 5 * (rng.random() < 0.01)).run(60)
    sent = [token for _, commit in course.sent for token in commit.tokens]
    assert sent == course.text[: len(sent)]
    assert len(course.text) - len(sent) < LONGEST / STEP * 6
    assert all(commit.tokens[0] == commit.start for _, commit in course.sent)


def test_one_that_has_become_good_is_sent_everything_within_the_longest_pause() -> None:
    course = Course(lambda now: 0)
    course.accepted = lambda now: now > 20 and course.sent[-1][0] > 20
    course.run(40)
    good = next(now for now, _ in course.sent if now > 20)
    assert good < 20 + LONGEST + STEP
    assert max(course.silences(since=good)) < 3 * STEP


def test_what_is_accepted_in_a_pause_ends_it() -> None:
    """Proposals may have been under way when the pause began."""
    course = Course(lambda now: 0)
    course.accepted = lambda now: course.backoff.paused(now)
    course.run(20)
    assert max(course.silences()) < 3 * STEP


def test_one_that_is_far_away_is_given_the_time_to_show_something() -> None:
    """The drafter has this time before the first pause and in every trial."""
    round_trip = 0.8
    course = Course(lambda now: 0, round_trip, round_trip).run(60)
    began = 0.0
    for (before, _), (now, _) in pairwise(course.sent):
        if now - before > 0.5:
            assert before - began >= 4 * round_trip - 2 * STEP
            began = now
    assert began > 40
