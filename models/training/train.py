"""Train the embedded pair: a small Llama that writes simple English, and its draft model.

The draft model is distilled while the target is trained: it learns from the logits that the target
computes for each batch anyway. The learning rates of both models reach zero at the same time. The
training stops after a given time. No service imports this module.

    python -m tandem.models.training.train CORPORA --out models/embedded --minutes 90
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.models.training.corpus import SOURCES, Stream, documents, encode, split, train_tokenizer
from tandem.models.training.optimiser import Optimiser

VOCABULARY = 4096
CONTEXT = 512
WINDOW = 256  # tokens per window, except in the last steps, whose windows have CONTEXT tokens
LONG_FROM = 0.88  # share of the training time after which windows have CONTEXT tokens
TARGET = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
DRAFT = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TARGET_MLP, DRAFT_MLP = 704, 352
DISTILLATION = 0.7  # weight of KL(target || draft); the rest is cross-entropy on the text


def build(shape: dict[str, Any], mlp: int, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Create a Llama with random weights."""
    config = LlamaConfig(
        **shape,
        intermediate_size=mlp,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: LlamaForCausalLM = LlamaForCausalLM._from_config(config, attn_implementation="eager")
    return model  # eager attention is the fastest on a CPU in bfloat16


def schedule(progress: float, step: int) -> float:
    """Return the learning rate as a share of its peak. The learning rate warms up over 100 steps,
    stays at its peak, and falls linearly to zero over the last 60 % of the time.
    """
    return min(1.0, (step + 1) / 100) * min(1.0, max(0.0, (1 - progress) / 0.6))


def losses(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, batch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses of both models on `batch`, int64 [rows, length + 1]. The target's loss is
    its cross-entropy on the text. The draft model's loss is its cross-entropy against a mixture of
    the target's distribution and the text's next tokens.
    """
    ids, text = batch[:, :-1], batch[:, 1:].flatten()
    with torch.autocast("cpu", torch.bfloat16):
        target_logits = (
            target(ids, use_cache=False).logits.flatten(0, 1).float()
        )  # [rows * length, vocab]
        draft_logits = draft(ids, use_cache=False).logits.flatten(0, 1).float()
    teacher = target_logits.detach().softmax(-1) * DISTILLATION
    teacher[torch.arange(len(text)), text] += 1 - DISTILLATION
    return F.cross_entropy(target_logits, text), F.cross_entropy(draft_logits, teacher)


def save(
    out: Path, target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Save both models in half precision, each together with the tokenizer."""
    for name, model in (("target", target), ("draft", draft)):
        half = LlamaForCausalLM(model.config)
        half.load_state_dict(model.state_dict())
        half.half().save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


@torch.no_grad()
def evaluate(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, held_out: Stream
) -> dict[str, float]:
    """Measure both models on held-out text: the nats per token of each model, and how often their
    likeliest tokens are the same.
    """
    batch = held_out.batch(64, CONTEXT + 1)
    ids, text = batch[:, :-1], batch[:, 1:].flatten()
    choices, row = [], {}
    for name, model in (("target", target), ("draft", draft)):
        logits = torch.cat([model(part, use_cache=False).logits for part in ids.split(8)]).flatten(
            0, 1
        )
        row[f"{name}_loss"] = round(F.cross_entropy(logits.float(), text).item(), 4)
        choices.append(logits.argmax(-1))
    return row | {"greedy_agreement": round((choices[0] == choices[1]).float().mean().item(), 4)}


def main() -> None:
    """Run the command line: read the corpora, train both models, and save them in `target/` and
    `draft/`.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("corpora", type=Path, help="folder with the corpus files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per step")
    parser.add_argument("--init", type=Path, help="start from the pair in this folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)

    parts = [split(documents(options.corpora / source.file)) for source in SOURCES]
    if options.init:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.init / "target")
        target, draft = (
            LlamaForCausalLM.from_pretrained(options.init / name, dtype=torch.float32)
            for name in ("target", "draft")
        )
    else:
        simple = (
            text
            for source, (docs, _) in zip(SOURCES, parts, strict=True)
            if source.simple
            for text in docs
        )
        tokenizer = train_tokenizer(simple, VOCABULARY)
        target, draft = build(TARGET, TARGET_MLP, tokenizer), build(DRAFT, DRAFT_MLP, tokenizer)
    stream = Stream(
        [encode(tokenizer, docs) for docs, _ in parts], [s.weight for s in SOURCES], options.seed
    )
    held_out = Stream([encode(tokenizer, parts[0][1])], [1.0], options.seed)
    train(target, draft, tokenizer, stream, held_out, options)


def train(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    stream: Stream,
    held_out: Stream,
    options: argparse.Namespace,
) -> None:
    """Train for `options.minutes` minutes. Every few minutes, save both models and print their
    losses.
    """
    optimisers = Optimiser(target, 0.02, 4e-3), Optimiser(draft, 0.02, 4e-3)
    options.out.mkdir(parents=True, exist_ok=True)
    start = saved = time.monotonic()
    step, progress = 0, 0.0
    compiled = torch.compile(losses, dynamic=False)
    while progress < 1:
        progress = (time.monotonic() - start) / (options.minutes * 60)
        length = CONTEXT if progress > LONG_FROM else WINDOW
        batch = stream.batch(options.tokens // length, length + 1)
        target_loss, draft_loss = compiled(target, draft, batch)
        (target_loss + draft_loss).backward()
        for model, optimiser in zip((target, draft), optimisers, strict=True):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step(schedule(progress, step))
        step += 1
        if math.isnan(target_loss.item()):
            raise ArithmeticError(f"the loss is not a number at step {step}")
        if time.monotonic() - saved > 240 or progress >= 1:
            saved = time.monotonic()
            row = {
                "step": step,
                "tokens": step * options.tokens,
                "minutes": round((saved - start) / 60, 1),
            }
            row |= evaluate(target, draft, held_out)
            print(json.dumps(row), flush=True)
            save(options.out, target, draft, tokenizer)


if __name__ == "__main__":
    main()
