"""The target alone, run by transformers: the reference for every text."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from tandem.engine.sampling.sampler import draws
from tandem.protos.types import SamplingParams


def generate(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Greedy `generate()`."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=1,
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def sample(
    model: PreTrainedModel, prompt: list[int], count: int, params: SamplingParams, end: int
) -> list[int]:
    """Generate one token at a time through transformers' own cache, drawn with the keyed noise."""
    tokens, fed, cache = list(prompt), 0, None
    while len(tokens) < len(prompt) + count:
        output = model(torch.tensor([tokens[fed:]]), past_key_values=cache, use_cache=True)
        cache, fed = output.past_key_values, len(tokens)
        tokens += draws(output.logits[0, -1:].float(), params, [len(tokens)])
        if tokens[-1] == end:
            break
    return tokens[len(prompt) :]


@torch.inference_mode()
def margins(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> list[float]:
    """Return, per completion token, how far the likeliest logit is above the second."""
    logits = model(torch.tensor([prompt + completion]), use_cache=False).logits[
        0, len(prompt) - 1 : -1
    ]
    top = logits.float().topk(2).values
    return (top[:, 0] - top[:, 1]).tolist()
