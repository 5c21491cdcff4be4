"""Stores answers on disk, many in a file, and joins answers to one long row of training tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandem.models.distil.teacher import TOP, Answer

ANSWERS_PER_FILE = 64
# stands in the place of likeliest tokens where the target's probabilities are not known
PADDING = -1


@dataclass
class Answers:
    """The answers that a folder holds, by the number of their question."""

    folder: Path
    found: dict[int, Answer] = field(default_factory=dict)
    _unsaved: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Answers:
        """Load the answers that were saved in a folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        answers = cls(folder)
        for file in sorted(folder.glob("*.npz")):
            with np.load(file) as arrays:
                for number in arrays["numbers"].tolist():
                    parts = [arrays[f"{name}{number}"] for name in Answer.__slots__]
                    answers.found[number] = Answer(*parts)
        return answers

    @property
    def tokens(self) -> int:
        """The number of tokens of all answers, without their prompts."""
        return sum(len(each.tokens) for each in self.found.values())

    def add(self, number: int, answer: Answer) -> None:
        """Add an answer; every ANSWERS_PER_FILE new answers are saved."""
        self.found[number] = answer
        self._unsaved.append(number)
        if len(self._unsaved) == ANSWERS_PER_FILE:
            self.save()

    def save(self) -> None:
        """Write the answers that are not on disk yet. A file is never written in part."""
        if not self._unsaved:
            return
        arrays = {"numbers": np.array(self._unsaved)}
        for number in self._unsaved:
            answer = self.found[number]
            arrays |= {f"{name}{number}": getattr(answer, name) for name in Answer.__slots__}
        file = self.folder / f"{self._unsaved[0]:08}.npz"
        half = file.with_suffix(".part")
        with half.open("wb") as out:
            np.savez(out, **arrays)  # type: ignore[arg-type]
        os.replace(half, file)
        self._unsaved.clear()


@dataclass(frozen=True, slots=True)
class PackedAnswers:
    """Prompts and answers in one row of `tokens`, int32 [tokens], each answer after its prompt. At
    each place, `top`, int32 [tokens, TOP], has the target's likeliest tokens for the next place,
    and `logprobs`, float32 [tokens, TOP], has their log-probabilities. Where the next token belongs
    to no answer, `top` has PADDING.
    """

    tokens: np.ndarray
    top: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> PackedAnswers:
        """Join answers with their prompts, in the given order."""
        size = sum(len(each.prompt) + len(each.tokens) for each in answers)
        tokens = np.zeros(size, np.int32)
        top = np.full((size, TOP), PADDING, np.int32)
        logprobs = np.zeros((size, TOP), np.float32)
        at = 0
        for each in answers:
            begin, end = at + len(each.prompt), at + len(each.prompt) + len(each.tokens)
            tokens[at:begin], tokens[begin:end] = each.prompt, each.tokens
            top[begin - 1 : end - 1] = each.top
            logprobs[begin - 1 : end - 1] = each.logprobs
            at = end
        return cls(tokens, top, logprobs)

    def batch(self, rows: int, length: int, chosen: np.random.Generator) -> PackedAnswers:
        """Choose windows at random places: tokens [rows, length], `top` and `logprobs`
        [rows, length, TOP].
        """
        starts = chosen.integers(0, max(1, len(self.tokens) - length + 1), rows)
        places = starts[:, None] + np.arange(min(length, len(self.tokens)))
        return PackedAnswers(self.tokens[places], self.top[places], self.logprobs[places])
