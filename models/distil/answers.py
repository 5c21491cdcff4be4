"""Stores answers on disk, and concatenates them to one long sequence of training tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tandem.models.distil.teacher import TOP, Answer

ANSWERS_PER_FILE = 64
# fills the list of likeliest tokens at positions where the target's probabilities are not known
PADDING = -1


@dataclass
class Answers:
    """The answers that are stored in a folder, keyed by the index of their question."""

    folder: Path
    found: dict[int, Answer] = field(default_factory=dict)
    _unsaved: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> Answers:
        """Load the answers that are stored in a folder. Creates the folder if it does not exist."""
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
        """The total number of tokens in all answers, without their prompts."""
        return sum(len(each.tokens) for each in self.found.values())

    def add(self, number: int, answer: Answer) -> None:
        """Add an answer. When there are ANSWERS_PER_FILE unsaved answers, save them."""
        self.found[number] = answer
        self._unsaved.append(number)
        if len(self._unsaved) == ANSWERS_PER_FILE:
            self.save()

    def save(self) -> None:
        """Write the answers that are not on disk yet to a new file, in one atomic step."""
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
    """Prompts and answers as one long sequence of training tokens. `tokens`, int32 [tokens], has
    each prompt followed by its answer. `top`, int32 [tokens, TOP], has the target's likeliest next
    tokens after each position. `logprobs`, float32 [tokens, TOP], has the log-probabilities of the
    tokens in `top`. `top` is PADDING where the next token is not part of an answer.
    """

    tokens: np.ndarray
    top: np.ndarray
    logprobs: np.ndarray

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> PackedAnswers:
        """Concatenate all prompts and answers, in the given order."""
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
        """Return windows at random positions: tokens [rows, length], `top` and `logprobs`
        [rows, length, TOP].
        """
        starts = chosen.integers(0, max(1, len(self.tokens) - length + 1), rows)
        places = starts[:, None] + np.arange(min(length, len(self.tokens)))
        return PackedAnswers(self.tokens[places], self.top[places], self.logprobs[places])
