"""What `tandem distil` learns with: its loss, its course, what it measures, and what it saves."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tandem import models
from tandem.models.distil import prompts
from tandem.models.distil.acceptance import tokens_per_step
from tandem.models.distil.answers import PADDING, Answers, Lesson
from tandem.models.distil.course import FALLING, HELD, LOOKS, WARM_UP, Course
from tandem.models.distil.loss import distillation_loss
from tandem.models.distil.student import DEEPEST, SHALLOWEST, Shape, build, narrowed
from tandem.models.distil.teacher import TOP, Answer
from tandem.models.distil.train import Training
from tandem.protos.errors import Unusable

ROWS, WIDTH, VOCABULARY, LIKELIEST = 12, 8, 300, 5


def problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden rows and embeddings of a student, the likeliest tokens of a teacher and theirs."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    embeddings = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    teacher = torch.randn(ROWS, VOCABULARY, generator=generator).mul(3).log_softmax(-1)
    logprobs, top = teacher.topk(LIKELIEST)
    return hidden, embeddings, top, logprobs


def exact(
    hidden: torch.Tensor, embeddings: torch.Tensor, top: torch.Tensor, logprobs: torch.Tensor
) -> torch.Tensor:
    """The loss as its definition says, over the whole vocabulary."""
    student = F.softmax((hidden @ embeddings.T).double(), -1)
    found, teacher = student.gather(1, top), logprobs.double().exp()
    known = (teacher * found.log()).sum(-1)
    others = (1 - teacher.sum(-1)) * (1 - found.sum(-1)).log()
    return -(known + others).mean()


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_exact_where_every_token_is_summed_up(seed: int) -> None:
    hidden, embeddings, top, logprobs = problem(seed)
    generator = torch.Generator().manual_seed(0)
    found = distillation_loss(hidden, embeddings, top, logprobs, generator, sample=VOCABULARY)
    right = exact(hidden, embeddings, top, logprobs)
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(found, embeddings)
    (wanted,) = torch.autograd.grad(right, embeddings)
    torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-5)


def test_a_sample_of_the_other_tokens_estimates_the_loss() -> None:
    """The mean over many samples is within four of its standard errors, but for the bias of a
    logarithm, which is half the variance of what it is of.
    """
    hidden, embeddings, top, logprobs = problem(0)
    generator = torch.Generator().manual_seed(1)
    losses = torch.stack(
        [
            distillation_loss(hidden, embeddings, top, logprobs, generator, sample=100).detach()
            for _ in range(400)
        ]
    ).double()
    error = 4 * losses.std().item() / math.sqrt(len(losses)) + losses.var().item() * ROWS
    assert abs(losses.mean() - exact(hidden, embeddings, top, logprobs)) < error


def test_a_student_that_says_what_its_target_says_has_the_least_loss() -> None:
    """No other distribution has a smaller one."""
    _, _, top, logprobs = problem(0)
    right = torch.full((ROWS, VOCABULARY), 0.0)
    rest = (1 - logprobs.exp().sum(-1, keepdim=True)) / (VOCABULARY - LIKELIEST)
    right += rest.log()
    right.scatter_(1, top, logprobs)
    one = torch.eye(VOCABULARY)

    def loss_of(logits: torch.Tensor) -> float:
        generator = torch.Generator().manual_seed(0)
        return distillation_loss(logits, one, top, logprobs, generator, VOCABULARY).item()

    least = loss_of(right)
    for seed in range(20):
        noise = torch.randn(right.shape, generator=torch.Generator().manual_seed(seed))
        assert loss_of(right + noise) > least


@given(st.integers(200, 300_000), st.integers(100_000, 100_000_000))
def test_a_shape_has_no_more_parameters_than_it_may(vocabulary: int, parameters: int) -> None:
    try:
        shape = Shape.fitting(vocabulary, parameters)
    except Unusable as refused:
        assert "too few" in str(refused)
        return
    assert shape.parameters <= parameters
    assert SHALLOWEST <= shape.layers <= DEEPEST


def test_narrowed_embeddings_keep_their_products_as_far_as_they_can() -> None:
    """All of them where there are as many columns as directions."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(500, 16, generator=generator) @ torch.diag(torch.logspace(0, -2, 16))
    centred = wide - wide.mean(0)
    products, errors = centred @ centred.T, []
    for width in (4, 8, 16):
        found = narrowed(wide, width)
        assert found.shape == (500, width)
        assert found.std().item() == pytest.approx(1, abs=1e-3)
        scale = (products * (found @ found.T)).sum() / (found @ found.T).square().sum()
        errors.append(((scale * found @ found.T - products).norm() / products.norm()).item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-4


def steps_of(agreed: list[bool], chain: int) -> int:
    """Steps that a verifier needs for an answer whose last token ends it."""
    if not agreed:
        return 0
    accepted = next((n for n, right in enumerate(agreed[:-1][:chain]) if not right), None)
    if accepted is None:
        accepted = min(chain, len(agreed) - 1)
    return 1 + steps_of(agreed[accepted + 1 :], chain)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1), st.integers(1, 6))
def test_tokens_per_step_are_those_of_a_verifier(answers: list[list[bool]], chain: int) -> None:
    steps = sum(steps_of(each, chain) for each in answers)
    assert tokens_per_step(answers, chain) == pytest.approx(sum(map(len, answers)) / steps)


def walk(course: Course, minutes: float, looks: list[float]) -> list[float]:
    """The learning rates of a course to its end, with a look after every ten steps."""
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
    assert rates.count(1.0) == pytest.approx(HELD * 60 / 0.05 - WARM_UP, abs=3)
    assert rates[-1] < 0.01


def test_training_ends_early_once_drafts_get_no_better() -> None:
    best_at = 20
    looks = [1.1 ** min(n, best_at) for n in range(1000)]
    rates = walk(Course(limit=1e6), 0.05, looks)
    held = 10 * (best_at + 1 + LOOKS)
    assert len(rates) == pytest.approx(held * (1 + FALLING), abs=3)


def test_a_course_goes_on_where_it_was() -> None:
    """Whatever its step."""
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


def test_a_lesson_is_about_the_tokens_of_answers() -> None:
    """What is known of a place is about the token behind it, in every window."""
    told = [answer(1, 4, 6), answer(2, 2, 3), answer(3, 5, 1)]
    lesson = Lesson.of(told)
    known = {}
    for each in told:
        for place in range(len(each.tokens)):
            text = (*each.prompt, *each.tokens[:place])
            known[text[-4:]] = each.top[place]
    tokens = lesson.tokens.tolist()
    assert tokens == list(itertools.chain(*((*each.prompt, *each.tokens) for each in told)))
    about = [place for place in range(len(tokens)) if lesson.top[place][0] != PADDING]
    assert len(about) == sum(len(each.tokens) for each in told)
    for text, top in known.items():
        (place,) = (at for at in about if tuple(tokens[: at + 1][-len(text) :]) == text)
        assert (lesson.top[place] == top).all()
    batch = lesson.batch(7, 5, np.random.default_rng(0))
    assert batch.tokens.shape == (7, 5) and batch.top.shape == (7, 5, TOP)


def test_made_prompts_have_no_gaps_and_hardly_repeat() -> None:
    texts = [each[0]["content"] for each in itertools.islice(prompts.made(0), 2000)]
    assert not any("{" in text for text in texts)
    assert len(set(texts)) > 1500
    again = [each[0]["content"] for each in itertools.islice(prompts.made(0), 2000)]
    assert texts == again


def test_prompts_of_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\n")
    assert prompts.own(lines) == [[{"role": "user", "content": each}] for each in ("one", "two")]
    entries = tmp_path / "entries.jsonl"
    entries.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}]}\n')
    assert prompts.own(entries) == ["one", [{"role": "user", "content": "two"}]]
    entries.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(Unusable, match=r"entries\.jsonl, line 2 has neither prompt nor messages"):
        prompts.own(entries)
    with pytest.raises(Unusable, match="cannot be read"):
        prompts.own(tmp_path / "nothing")


class Interrupting(Training):
    """Is stopped, as by Ctrl-C, before the steps of these numbers, each time it is begun."""

    stops: ClassVar[set[int]] = set()

    def _step(self, lesson: Lesson, seed: int) -> float:
        if self.course.step in self.stops:
            self.stops.remove(self.course.step)
            raise KeyboardInterrupt
        return super()._step(lesson, seed)


def trained(folder: Path, stops: set[int]) -> tuple[dict[str, torch.Tensor], Course, int]:
    """A tiny student at the end of its course, that course, and how often it was begun."""
    lesson = Lesson.of([answer(number, 30, 120) for number in range(8)])
    held_out = [answer(number, 5, 20) for number in range(100, 104)]
    Interrupting.stops = set(stops)
    begun = 0
    while True:
        torch.manual_seed(0)
        student = build(Shape(100, 64, 1), models.TARGET)
        training = Interrupting(student, Course(1e6), models.TARGET, folder, folder / "state.pt")
        begun += 1
        with suppress(KeyboardInterrupt):
            training.run(lesson, held_out, 0, lambda look: None)
            return dict(student.state_dict()), training.course, begun


def test_what_was_interrupted_ends_as_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, wherever it was stopped."""
    monkeypatch.setattr("tandem.models.distil.train.LOOK_STEPS", 4)
    monkeypatch.setattr("tandem.models.distil.train.ROWS", 2)
    whole, course, _ = trained(tmp_path / "whole", set())
    assert course.falls_from, "random answers cannot be learned"
    stops = {1, course.falls_from - 2, course.falls_from + 1}
    parts, again, begun = trained(tmp_path / "parts", stops)
    assert begun == 1 + len(stops)
    assert (again.step, again.looks) == (course.step, course.looks)
    for name, weights in whole.items():
        assert torch.equal(parts[name], weights), name
