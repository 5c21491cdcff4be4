"""The training loop: a student learns from the target's answers, and is evaluated every LOOK_STEPS
steps. The training can be stopped and continued at any step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

import numpy as np
import torch
from torch import nn
from transformers import MistralForCausalLM

from tandem.models.distil import student as students
from tandem.models.distil.acceptance import measure
from tandem.models.distil.answers import PADDING, PackedAnswers
from tandem.models.distil.course import Course
from tandem.models.distil.loss import distillation_loss
from tandem.models.distil.teacher import Answer
from tandem.models.training.optimiser import Optimiser

WINDOW = 256  # tokens per window
BATCH_SIZE = 8  # windows per step
LOOK_STEPS = 100  # steps between two evaluations
MATRIX_RATE, OTHER_RATE = 0.02, 4e-3  # learning rates, as in the training of the embedded pair


@contextmanager
def interruption() -> Iterator[Event]:
    """Yield an event that is set if Ctrl-C is pressed inside this context. A second Ctrl-C
    interrupts the program immediately.
    """
    asked, before = Event(), signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(frozen=True, slots=True)
class Look:
    """One evaluation of the training: the mean loss in nats since the last evaluation, and the
    tokens per step on held-out answers.
    """

    course: Course
    loss: float
    tokens_per_step: float
    learned: int  # number of tokens learned from; a token counts each time it is used


class Training:
    """The training of a student, with its optimiser and its schedule. If the file `state` exists,
    the training continues from the state saved there.
    """

    def __init__(
        self, student: MistralForCausalLM, course: Course, target: Path, out: Path, state: Path
    ) -> None:
        self.student = student
        self.course = course
        self._target = target
        self._out = out
        self._state = state
        self._optimiser = Optimiser(student, MATRIX_RATE, OTHER_RATE)
        if state.is_file():
            self._restore()

    def run(
        self,
        packed: PackedAnswers,
        held_out: list[Answer],
        seed: int,
        report: Callable[[Look], None],
    ) -> None:
        """Train until the schedule has ended. After Ctrl-C, finish the current step, save the
        state, and raise KeyboardInterrupt. The training can be continued later from this state.
        """
        losses = []
        with interruption() as interrupted:
            while not self.course.ended:
                began = time.monotonic()
                losses.append(self._step(packed, seed))
                self.course.advance((time.monotonic() - began) / 60)
                if self.course.step % LOOK_STEPS == 0 or self.course.ended:
                    found = measure(self.student, held_out)
                    self.course.look(found)
                    mean = float(np.mean(losses))
                    learned = self.course.step * BATCH_SIZE * WINDOW
                    report(Look(self.course, mean, found, learned))
                    losses.clear()
                    self.save()
                if interrupted.is_set():
                    self.save()
                    raise KeyboardInterrupt

    def save(self) -> None:
        """Save the student in the format that services load, and the state from which the training
        can be continued.
        """
        students.save(self.student, self._target, self._out)
        half = self._state.with_suffix(".part")
        torch.save(
            {
                "student": self.student.state_dict(),
                "optimiser": self._optimiser.state(),
                "course": asdict(self.course),
            },
            half,
        )
        os.replace(half, self._state)

    def _restore(self) -> None:
        found = torch.load(self._state, map_location=self.student.device, weights_only=True)
        self.student.load_state_dict(found["student"])
        self._optimiser.restore(found["optimiser"])
        self.course = Course.continued(found["course"], self.course.limit, self.course.tokens)

    def _step(self, packed: PackedAnswers, seed: int) -> float:
        """Train one step on random windows of the answers. Which windows are used depends only on
        the seed and the index of the step. Returns the loss.
        """
        rng = np.random.default_rng((seed, self.course.step))
        batch = packed.batch(BATCH_SIZE, WINDOW, rng)
        device = self.student.device
        ids, top = (torch.from_numpy(each).long().to(device) for each in (batch.tokens, batch.top))
        known = top[..., 0] != PADDING
        generator = torch.Generator().manual_seed(seed + self.course.step)
        hidden = self.student.model(input_ids=ids, use_cache=False).last_hidden_state[known]
        embeddings = students.embeddings_of(self.student)
        logprobs = torch.from_numpy(batch.logprobs).to(device)[known]
        loss = distillation_loss(hidden, embeddings, top[known], logprobs, generator)
        loss.backward()
        nn.utils.clip_grad_norm_(self.student.parameters(), 1.0)
        self._optimiser.step(self.course.scale)
        if not torch.isfinite(loss):
            raise ArithmeticError(f"the loss is not a number at step {self.course.step}")
        return loss.item()
