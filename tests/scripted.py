"""Models that say a given text: at each position a fixed token, whatever the tokens before it.

With a target that says a text and a drafter that is wrong at known positions, acceptance, stops,
limits and finish reasons fall exactly where a test wants them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from tandem import models

POSITIONS = 256
END = 0  # the embedded tokenizer's end of text
STRENGTH = 2.0  # the logit of a token at its position


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a text in the embedded tokenizer."""
    tokenizer = Tokenizer.from_file(str(models.TARGET / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


TEXT = "Once upon a time, there was a café in 東京 🦊 where Lily drank tea. The end."
TOKENS = tokens_of(TEXT)


def saying(folder: Path, tokens: Sequence[int], wrong_every: int = 0) -> Path:
    """Make the directory of a model whose greedy token at position `n` is `tokens[n]`, and the end
    of text after them; every `wrong_every`-th token is a different one. After a prompt of one token
    the model says all of them.

    The model is a GPT-2 with orthogonal position embeddings: a token's output row is the sum of the
    embeddings of the positions where the model says it.
    """
    script = [*tokens, *[END] * (POSITIONS - len(tokens))]
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(models.TARGET / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    if wrong_every:
        script = [
            token if (place + 1) % wrong_every else (token + 7) % size
            for place, token in enumerate(script)
        ]
    config = GPT2Config(
        vocab_size=size,
        n_embd=POSITIONS,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=END,
        eos_token_id=END,
        pad_token_id=1,
    )
    network = GPT2LMHeadModel(config).float().eval()
    places = torch.linalg.qr(torch.randn(POSITIONS, POSITIONS))[0]
    places -= places.mean(1, keepdim=True)
    rows = 0.02 * torch.randn(size, POSITIONS)
    for place, token in zip(places, script, strict=True):
        rows[token] += STRENGTH * torch.nn.functional.normalize(place, dim=0)
    with torch.no_grad():
        network.transformer.wte.weight.copy_(0.01 * torch.randn(size, POSITIONS))
        network.transformer.wpe.weight.copy_(places)
        network.lm_head.weight.copy_(rows)
        for layer in network.transformer.h:
            layer.attn.c_proj.weight.mul_(0.05)
            layer.mlp.c_proj.weight.mul_(0.05)
    network.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models.TARGET / name, folder)
    return folder
