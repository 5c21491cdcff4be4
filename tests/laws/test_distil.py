"""The parts of `tandem distil`: its loss, its network, its prompts and its measurements."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tandem import models
from tandem.models.distil import prompts
from tandem.models.distil.__main__ import HELD_OUT, app, read_prompts
from tandem.models.distil.acceptance import tokens_per_step
from tandem.models.distil.loss import distillation_loss
from tandem.models.distil.student import MAX_LAYERS, MIN_LAYERS, Shape, narrowed
from tandem.models.distil.teacher import Question, Teacher
from tandem.protos.errors import TransportLost, Unusable

ROWS, WIDTH, VOCABULARY, LIKELIEST = 12, 8, 300, 5


def problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a student's hidden rows and embeddings, and a teacher's likeliest tokens with their
    log-probabilities.
    """
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, WIDTH, generator=generator)
    embeddings = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
    teacher = torch.randn(ROWS, VOCABULARY, generator=generator).mul(3).log_softmax(-1)
    logprobs, top = teacher.topk(LIKELIEST)
    return hidden, embeddings, top, logprobs


def exact(
    hidden: torch.Tensor, embeddings: torch.Tensor, top: torch.Tensor, logprobs: torch.Tensor
) -> torch.Tensor:
    """Compute the loss by its definition, over the whole vocabulary."""
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
    """The mean over many samples is within four standard errors, except for the bias of the
    logarithm, which is half the variance of its argument.
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


def test_columns_without_a_token_change_no_loss() -> None:
    """Such columns occur where a target lists fewer likely tokens than the others."""
    hidden, embeddings, top, logprobs = problem(0)
    wider = torch.cat([top, torch.zeros(ROWS, 3, dtype=top.dtype)], 1)
    nothing = torch.cat([logprobs, torch.full((ROWS, 3), -torch.inf)], 1)
    losses = [
        distillation_loss(
            hidden, embeddings, *each, torch.Generator().manual_seed(0), sample=VOCABULARY
        )
        for each in ((top, logprobs), (wider, nothing))
    ]
    torch.testing.assert_close(*losses)


def test_a_student_that_says_what_its_target_says_has_the_least_loss() -> None:
    """Every other distribution has a larger loss."""
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
    assert MIN_LAYERS <= shape.layers <= MAX_LAYERS


@pytest.mark.parametrize("width", [4, 8, 16])
def test_narrowed_embeddings_keep_their_products_as_far_as_so_many_columns_can(width: int) -> None:
    """Among all approximations of this rank, the truncated singular value decomposition is the
    best.
    """
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(500, 16, generator=generator) @ torch.diag(torch.logspace(0, -2, 16))
    centred = (wide - wide.mean(0)).double()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    best = left[:, :width] * values[:width]
    found = narrowed(wide, width)
    assert found.shape == (500, width)
    assert found.std().item() == pytest.approx(1, abs=1e-3)
    products = found.double() @ found.double().T
    products *= (best @ best.T).norm() / products.norm()
    torch.testing.assert_close(products, best @ best.T, rtol=0, atol=1e-4)


def steps_of(agreed: list[bool], chain: int) -> int:
    """Return the steps that a verifier needs for an answer whose last token ends it."""
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


def test_generated_prompts_have_no_gaps_and_hardly_repeat() -> None:
    texts = [each[0]["content"] for each in itertools.islice(prompts.generated(0), 2000)]
    assert not any("{" in text for text in texts)
    assert len(set(texts)) > 1500
    again = [each[0]["content"] for each in itertools.islice(prompts.generated(0), 2000)]
    assert texts == again


def test_prompts_of_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\n")
    assert prompts.read(lines) == [[{"role": "user", "content": each}] for each in ("one", "two")]
    entries = tmp_path / "entries.jsonl"
    entries.write_text('{"prompt": "one"}\n{"messages": [{"role": "user", "content": "two"}]}\n')
    assert prompts.read(entries) == ["one", [{"role": "user", "content": "two"}]]
    entries.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(Unusable, match=r"entries\.jsonl, line 2 has neither prompt nor messages"):
        prompts.read(entries)
    with pytest.raises(Unusable, match="cannot be read"):
        prompts.read(tmp_path / "nothing")


def test_too_few_prompts_are_refused_before_anything_starts(tmp_path: Path) -> None:
    file, out = tmp_path / "prompts.txt", tmp_path / "draft"
    file.write_text("one\n" * HELD_OUT)
    words = ["--target", str(models.TARGET), "--out", str(out), "--prompts", str(file)]
    run = CliRunner().invoke(app, [*words, "--parameters", "600K"])
    assert run.exit_code == 1
    assert str(run.exception) == f"error: {file} has 32 prompts: more than 32 are required"
    assert not out.exists()
    file.write_text("one\n" * (HELD_OUT + 1))
    assert len(read_prompts(file)) == HELD_OUT + 1


async def test_answers_that_fail_at_once_are_one_error_and_nothing_else_is_logged() -> None:
    async def generate(*_: object, **__: object) -> None:
        raise TransportLost("the front end does not answer")

    logged: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    client: Any = SimpleNamespace(generate=generate)
    asked = [Question(number, "Why?", 0.0) for number in range(4)]
    with pytest.raises(TransportLost):
        async for _ in Teacher(client, max_new_tokens=8, at_once=4).answers(asked):
            pass
    gc.collect()
    assert not logged
