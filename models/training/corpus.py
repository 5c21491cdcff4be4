"""The training data: the documents of several corpora as streams of tokens. The last documents of
each corpus are held out.

The corpora are plain text files whose documents are separated by a line `<|endoftext|>`. This
module does not use models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
PAD = "<|pad|>"
HELD_OUT = 0.025  # share of each corpus's documents that is held out
TYPOGRAPHY = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2026": "...", "\u2014": " - "}
)


@dataclass(frozen=True, slots=True)
class Source:
    """One corpus file, and how often windows are drawn from it relative to the other files."""

    file: str
    weight: float
    # whether the text is simple English: the tokenizer is trained only on simple English
    simple: bool = True


SOURCES = (
    Source("tinystories.txt", 6.0),
    Source("fairytaleqa_stories.txt", 1.0),
    Source("gutenberg_fairy_tales.txt", 0.7),
    Source("african_storybook_en.txt", 1.0),
    Source("gutenberg_short_stories.txt", 1.3, simple=False),
)


def plain(text: str) -> str:
    """Repair UTF-8 that was decoded as Windows-1252, and replace curly quotes, dashes and ellipses
    by ASCII, because a small model should not have to learn several forms of one character.
    """
    lines = []
    for line in text.split("\n"):
        try:
            line = line.encode("cp1252").decode("utf-8")
        except UnicodeError:
            line = (
                line.replace("â€œ", '"')
                .replace("â€\x9d", '"')
                .replace("â€™", "'")
                .replace("â€", '"')
            )
        lines.append(line.translate(TYPOGRAPHY).rstrip())
    return "\n".join(lines)


def documents(path: Path) -> list[str]:
    """Return the documents of a corpus file in their order, with repaired and simplified
    characters.
    """
    docs = path.read_text(encoding="utf-8", errors="replace").split(END)
    return [text for doc in docs if (text := plain(doc).strip())]


def split(docs: list[str]) -> tuple[list[str], list[str]]:
    """Split documents into (training, held out): the held-out part is the last 2.5 % of them."""
    cut = max(1, len(docs) - max(1, round(len(docs) * HELD_OUT)))
    return docs[:cut], docs[cut:]


def train_tokenizer(texts: Iterator[str], entries: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that has one token for padding and another for the end of a
    text.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=entries,
            special_tokens=[END, PAD],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


class Stream:
    """Draws windows of tokens at random positions of several corpora."""

    def __init__(self, tokens: list[np.ndarray], weights: list[float], seed: int) -> None:
        self._tokens = tokens
        self._weights = np.array(weights) / sum(weights)
        self._random = np.random.default_rng(seed)

    def batch(self, rows: int, length: int) -> torch.Tensor:
        """Draw a batch of random windows of tokens, int64 [rows, length]."""
        windows = []
        for source in self._random.choice(len(self._tokens), size=rows, p=self._weights):
            start = self._random.integers(0, len(self._tokens[source]) - length)
            windows.append(self._tokens[source][start : start + length].astype(np.int64))
        return torch.from_numpy(np.stack(windows))


def encode(tokenizer: PreTrainedTokenizerFast, docs: list[str]) -> np.ndarray:
    """Encode documents as one stream of ids with an end token after each, uint16 [tokens]."""
    end = tokenizer.eos_token_id
    ids = [i for row in tokenizer(docs)["input_ids"] for i in (*row, end)]
    return np.array(ids, dtype=np.uint16)
