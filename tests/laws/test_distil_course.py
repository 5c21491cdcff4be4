"""The course of `tandem distil`: its answers, its learning rates, its end, and how it resumes."""

from __future__ import annotations

import itertools
import signal
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from tandem import models
from tandem.models.distil.answers import PADDING, Answers, PackedAnswers
from tandem.models.distil.course import MAX_FALL, MAX_HOLD, PATIENCE, WARM_UP, Course
from tandem.models.distil.student import Shape, build
from tandem.models.distil.teacher import TOP, Answer
from tandem.models.distil.train import Training


def walk(course: Course, minutes: float, looks: list[float]) -> list[float]:
    """Return the learning rates of a whole course that evaluates after every ten steps."""
    rates, left = [], iter(looks)
    while not course.ended:
        rates.append(course.scale)
        course.advance(minutes)
        if course.step % 10 == 0:
            course.look(next(left, looks[-1]))
        assert course.minutes <= course.limit + minutes
    return rates


def test_training_ends_in_time_where_drafts_get_better_to_the_end() -> None:
    rising = [1.01**n for n in range(10_000)]
    rates = walk(Course(limit=60), 0.05, rising)
    assert rates == sorted(rates[:WARM_UP]) + sorted(rates[WARM_UP:], reverse=True)
    assert len(rates) == pytest.approx(60 / 0.05, abs=2)
    assert rates.count(1.0) == pytest.approx(MAX_HOLD * 60 / 0.05 - WARM_UP, abs=3)
    assert rates[-1] < 0.01


def test_training_ends_early_once_drafts_get_no_better() -> None:
    best_at = 20
    looks = [1.1 ** min(n, best_at) for n in range(1000)]
    rates = walk(Course(limit=1e6), 0.05, looks)
    held = 10 * (best_at + 1 + PATIENCE)
    assert len(rates) == pytest.approx(held * (1 + MAX_FALL), abs=3)


def test_a_course_goes_on_where_it_was() -> None:
    """The course resumes at any step."""
    looks = [1.1 ** min(n, 5) for n in range(1000)]
    whole = walk(Course(limit=1e6), 0.05, looks)
    for stop in (1, 57, 115, 160):
        course = Course(limit=1e6)
        left = iter(looks)
        for _ in range(stop):
            course.advance(0.05)
            if course.step % 10 == 0:
                course.look(next(left))
        again = Course(**{name: getattr(course, name) for name in Course.__dataclass_fields__})
        assert walk(again, 0.05, list(left)) == whole[stop:]


@pytest.mark.parametrize(("limit", "tokens"), [(60, 100), (60, 101), (90, 100)])
def test_a_course_that_ended_goes_on_with_more_answers_or_more_time(
    limit: float, tokens: int
) -> None:
    looks = [1.1 ** min(n, 5) for n in range(1000)]
    course = Course(60, 100)
    steps = len(walk(course, 0.05, looks))
    again = Course.continued(asdict(course), limit, tokens)
    if (limit, tokens) == (60, 100):
        assert again == course and again.ended
        return
    rates = walk(again, 0.05, looks)
    assert rates[0] < 0.02 and 1.0 in rates and rates[-1] < 0.01
    assert again.step == steps + len(rates) and len(rates) > 100


def answer(seed: int, prompt: int, size: int) -> Answer:
    """Random numbers."""
    chosen = np.random.default_rng(seed)
    top = chosen.integers(0, 99, (size, TOP)).astype(np.int32)
    logprobs = chosen.normal(size=(size, TOP)).astype(np.float32)
    whole = chosen.integers(0, 99, prompt + size).astype(np.int32)
    return Answer(whole[:prompt], whole[prompt:], top, logprobs)


def test_answers_are_found_again(tmp_path: Path) -> None:
    kept = {number: answer(number, 3, 5) for number in range(100)}
    answers = Answers.of(tmp_path)
    for number, each in kept.items():
        answers.add(number, each)
    assert 0 < len(Answers.of(tmp_path).found) < 100, "some are saved as they come"
    answers.save()
    found = Answers.of(tmp_path)
    assert found.tokens == 500
    for number, each in kept.items():
        for name in Answer.__slots__:
            assert (getattr(found.found[number], name) == getattr(each, name)).all()


def test_packed_answers_teach_the_tokens_of_answers_alone() -> None:
    """In every window, the teacher's values at a position describe the token after it."""
    told = [answer(1, 4, 6), answer(2, 2, 3), answer(3, 5, 1)]
    packed = PackedAnswers.of(told)
    known = {}
    for each in told:
        for place in range(len(each.tokens)):
            text = (*each.prompt, *each.tokens[:place])
            known[text[-4:]] = each.top[place]
    tokens = packed.tokens.tolist()
    assert tokens == list(itertools.chain(*((*each.prompt, *each.tokens) for each in told)))
    about = [place for place in range(len(tokens)) if packed.top[place][0] != PADDING]
    assert len(about) == sum(len(each.tokens) for each in told)
    for text, top in known.items():
        (place,) = (at for at in about if tuple(tokens[: at + 1][-len(text) :]) == text)
        assert (packed.top[place] == top).all()
    batch = packed.batch(7, 5, np.random.default_rng(0))
    assert batch.tokens.shape == (7, 5) and batch.top.shape == (7, 5, TOP)


class Interrupting(Training):
    """A trainer that Ctrl-C interrupts in the steps with these numbers."""

    stops: ClassVar[set[int]] = set()

    def _step(self, packed: PackedAnswers, seed: int) -> float:
        if self.course.step in self.stops:
            self.stops.remove(self.course.step)
            signal.raise_signal(signal.SIGINT)
        return super()._step(packed, seed)


def trained(folder: Path, stops: set[int]) -> tuple[dict[str, torch.Tensor], Course, list[int]]:
    """Return a tiny student at the end of its course, the course, and the steps at which training
    was begun.
    """
    packed = PackedAnswers.of([answer(number, 30, 120) for number in range(8)])
    held_out = [answer(number, 5, 20) for number in range(100, 104)]
    Interrupting.stops = set(stops)
    begun = []
    while True:
        torch.manual_seed(0)
        student = build(Shape(100, 64, 1), models.TARGET)
        training = Interrupting(student, Course(1e6), models.TARGET, folder, folder / "state.pt")
        begun.append(training.course.step)
        with suppress(KeyboardInterrupt):
            training.run(packed, held_out, 0, lambda look: None)
            return dict(student.state_dict()), training.course, begun


def test_what_was_interrupted_ends_as_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are the same bit for bit, wherever the training was interrupted."""
    monkeypatch.setattr("tandem.models.distil.train.LOOK_STEPS", 4)
    monkeypatch.setattr("tandem.models.distil.train.BATCH_SIZE", 2)
    whole, course, _ = trained(tmp_path / "whole", set())
    assert course.falls_from, "random answers cannot be learned"
    stops = {1, course.falls_from - 2, course.falls_from + 1}
    parts, again, begun = trained(tmp_path / "parts", stops)
    assert begun == [0, *(stop + 1 for stop in sorted(stops))]
    assert (again.step, again.looks) == (course.step, course.looks)
    for name, weights in whole.items():
        assert torch.equal(parts[name], weights), name
