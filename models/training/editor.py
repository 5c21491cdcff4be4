"""Train a target to edit: it repeats a text with one word replaced by another.

The embedded target tells stories and does not copy its prompts, so it cannot show how much lookup
drafts gain when answers repeat their prompts. This module trains a target that can edit, for
measurements (`python -m tandem.benchmarks.copying --target FOLDER`). The training stops after a
given time. No service imports this module.

    python -m tandem.models.training.editor CORPORA --out FOLDER --minutes 10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem import models
from tandem.models.training.corpus import SOURCES, Stream, documents, encode, split
from tandem.models.training.optimiser import Optimiser
from tandem.models.training.train import schedule

MIN_TEXT, MAX_TEXT = 24, 120  # minimum and maximum tokens per text
HELD_OUT = 64  # number of held-out texts; each has `MEASURED` tokens
MEASURED = 80


def task(text: Sequence[int], old: int, new: int, line_break: Sequence[int]) -> list[int]:
    """Return the token ids of a prompt that asks to repeat a text with `new` in place of `old`."""
    return [*text, *line_break, old, new, *line_break]


def edited(text: Sequence[int], old: int, new: int) -> list[int]:
    """Return the expected answer to an editing task: the text with `new` in place of `old`."""
    return [new if token == old else token for token in text]


def examples(
    texts: torch.Tensor, line_break: Sequence[int], end: int, rng: np.random.Generator
) -> torch.Tensor:
    """Create editing tasks with their answers from texts [rows, tokens]. Returns token ids, int64
    [rows, length].
    """
    rows = []
    texts = texts.where(texts != end, line_break[0])  # a row is one text, without end tokens
    for text in texts.tolist():
        old, new = int(rng.choice(text)), int(rng.choice(texts.flatten()))
        rows.append([*task(text, old, new, line_break), *edited(text, old, new), end])
    return torch.tensor(rows)


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor, answer: int) -> torch.Tensor:
    """Return the cross-entropy on the answers, which are the last `answer` tokens of each row of
    `batch`, int64 [rows, length].
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits[:, -answer:]
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, -answer:].flatten())


@torch.no_grad()
def accuracy(model: LlamaForCausalLM, batch: torch.Tensor, answer: int) -> float:
    """Return the share of answer tokens that are the model's likeliest token at their position. The
    answers are the last `answer` tokens of each row of `batch`, int64 [rows, length].
    """
    logits = model(batch[:, :-1], use_cache=False).logits[:, -answer:]
    return float((logits.argmax(-1) == batch[:, -answer:]).float().mean())


def main() -> None:
    """Run the command line: read the corpora and a model, train the model, and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("corpora", type=Path, help="folder with the corpus files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=models.TARGET, help="model to start from")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.model)
    model = LlamaForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    parts = [split(documents(options.corpora / source.file)) for source in SOURCES]
    weights = [source.weight for source in SOURCES]
    stream = Stream([encode(tokenizer, docs) for docs, _ in parts], weights, options.seed)
    held_out = Stream([encode(tokenizer, parts[0][1])], [1.0], options.seed)
    train(model, tokenizer, stream, held_out, options)
    model.half().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    stream: Stream,
    held_out: Stream,
    options: argparse.Namespace,
) -> None:
    """Train for `options.minutes` minutes. Every minute, print which share of the tokens of
    held-out answers the model predicts correctly.
    """
    line_break, rng = tokenizer("\n")["input_ids"], np.random.default_rng(options.seed)
    end = tokenizer.eos_token_id
    judged = examples(held_out.batch(HELD_OUT, MEASURED), line_break, end, rng)
    optimiser = Optimiser(model, 0.01, 2e-3)
    start = told = time.monotonic()
    step, progress = 0, 0.0
    while progress < 1:
        progress = (time.monotonic() - start) / (options.minutes * 60)
        size = int(rng.integers(MIN_TEXT, MAX_TEXT + 1))
        texts = stream.batch(max(1, options.tokens // (2 * size)), size)
        loss = loss_of(model, examples(texts, line_break, end, rng), size + 1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step(schedule(progress, step))
        step += 1
        if time.monotonic() - told > 60 or progress >= 1:
            told = time.monotonic()
            right = accuracy(model, judged, MEASURED + 1)
            row = {"step": step, "minutes": round((told - start) / 60, 1), "right": round(right, 4)}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
