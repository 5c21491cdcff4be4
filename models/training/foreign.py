"""Train a drafter whose tokenizer differs from the target's.

The tokenizers differ in vocabulary, word boundaries and special token ids. The drafter learns only
from text, by cross-entropy, because it cannot be distilled from a target with other tokens. The
training stops after a given time. No service imports this module.

    python -m tandem.models.training.foreign CORPORA --out models/foreign --minutes 25
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.models.training.corpus import SOURCES, Stream, documents, encode, split
from tandem.models.training.optimiser import Optimiser
from tandem.models.training.train import (
    CONTEXT,
    DRAFT,
    DRAFT_MLP,
    LONG_FROM,
    WINDOW,
    build,
    schedule,
)

VOCABULARY = 2048
PAD, START, END = "<pad>", "<s>", "</s>"  # special tokens with the ids 0, 1 and 2
# splits text into words ("don't" is one), single digits, punctuation, and other single spaces
WORDS = r" ?[\p{L}']+|\p{N}| ?[^\s\p{L}\p{N}']+|\s"
STORIES, CHARACTERS = 200, 800  # number of measured stories, and characters of each


def train_tokenizer(texts: Iterator[str], entries: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer that differs from that of the embedded pair in its merges,
    word boundaries and special token ids.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=entries,
            special_tokens=[PAD, START, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of a model on `batch`, int64 [rows, length + 1]."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits  # [rows, length, vocab]
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


@torch.no_grad()
def bits_per_byte(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, docs: list[str]
) -> float:
    """Return a model's cross-entropy in bits per byte on the beginnings of documents. Unlike nats
    per token, bits per byte can be compared between models with different tokenizers.
    """
    nats, size = 0.0, 0
    for doc in docs[:STORIES]:
        text = doc[:CHARACTERS]
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]])
        logits = model(ids[:, :-1], use_cache=False).logits[0]  # [tokens, vocab]
        nats += F.cross_entropy(logits.float(), ids[0, 1:], reduction="sum").item()
        size += len(text.encode())
    return nats / size / math.log(2)


def save(out: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save the model in half precision, together with its tokenizer."""
    half = LlamaForCausalLM(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(out)
    tokenizer.save_pretrained(out)


def train(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    stream: Stream,
    held_out: list[str],
    options: argparse.Namespace,
) -> None:
    """Train for `options.minutes` minutes. Every few minutes, save the model and print its bits per
    byte on held-out text.
    """
    optimiser = Optimiser(model, 0.02, 4e-3)
    start = saved = time.monotonic()
    step, progress = 0, 0.0
    compiled = torch.compile(loss_of, dynamic=False)
    while progress < 1:
        progress = (time.monotonic() - start) / (options.minutes * 60)
        length = CONTEXT if progress > LONG_FROM else WINDOW
        loss = compiled(model, stream.batch(options.tokens // length, length + 1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step(schedule(progress, step))
        step += 1
        if math.isnan(loss.item()):
            raise ArithmeticError(f"the loss is not a number at step {step}")
        if time.monotonic() - saved > 180 or progress >= 1:
            saved = time.monotonic()
            row = {"step": step, "tokens": step * options.tokens}
            minutes, bits = (saved - start) / 60, bits_per_byte(model, tokenizer, held_out)
            row |= {"minutes": round(minutes, 1), "bits_per_byte": round(bits, 4)}
            print(json.dumps(row), flush=True)
            save(options.out, model, tokenizer)


def main() -> None:
    """Run the command line: read the corpora, train a draft model, and save it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("corpora", type=Path, help="folder with the corpus files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=25)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per step")
    parser.add_argument("--beside", type=Path, help="also print the bits per byte of this model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    parts = [split(documents(options.corpora / source.file)) for source in SOURCES]
    if options.beside:
        other = LlamaForCausalLM.from_pretrained(options.beside, dtype=torch.float32)
        words = PreTrainedTokenizerFast.from_pretrained(options.beside)
        print(json.dumps({"beside": round(bits_per_byte(other, words, parts[0][1]), 4)}))
    chosen = zip(SOURCES, parts, strict=True)
    simple = (text for source, (docs, _) in chosen if source.simple for text in docs)
    tokenizer = train_tokenizer(simple, VOCABULARY)
    model = build(DRAFT, DRAFT_MLP, tokenizer)
    model.resize_token_embeddings(VOCABULARY)
    weights = [source.weight for source in SOURCES]
    stream = Stream([encode(tokenizer, docs) for docs, _ in parts], weights, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    train(model, tokenizer, stream, parts[0][1], options)


if __name__ == "__main__":
    main()
