"""The embedded pair as GGUF files, and what llama.cpp alone says: a sequence of its own, fed whole
and then a token at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tandem.engine.gguf.llama import BatchRow, LlamaContext
from tandem.engine.gguf.model import GGUFModel

MakeGGUF = Callable[[Path, str], Path]
missing = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
needs_llama = pytest.mark.skipif(
    bool(missing), reason=f"{' and '.join(missing)} not installed: make gguf"
)


def maker(folder: Path) -> MakeGGUF:
    """Makes a model directory a file, once."""

    def make(model: Path, kind: str) -> Path:
        from tandem.models.gguf import convert

        file = folder / f"{model.name}-{kind}.gguf"
        if not file.exists():
            convert(model, file, kind)
        return file

    return make


class Alone:
    """llama.cpp by itself, one text at a time."""

    def __init__(self, model: GGUFModel, positions: int) -> None:
        self._context: LlamaContext = model.context(positions, sequences=1)
        self._length = 0

    def feed(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """More of the text; its logits, [tokens, vocab]."""
        rows = [BatchRow(token, self._length + n, [0], True) for n, token in enumerate(tokens)]
        self._length += len(tokens)
        return self._context.decode(rows)

    def whole(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits of a new text, [tokens, vocab]."""
        self._context.remove(0, 0)
        self._length = 0
        return self.feed(tokens)

    def behind_the_likeliest(self, prompt: Sequence[int], text: Sequence[int]) -> list[float]:
        """By how much the logit of each token of a text is below the largest in its place."""
        differences: list[float] = []
        row = self.whole(prompt)[-1]
        for token in text:
            differences.append(float(row.max() - row[token]))
            row = self.feed([token])[-1]
        return differences
