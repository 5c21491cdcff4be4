"""Compute attention with PyTorch, for query rows that share one tensor of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The options that determine how a layer converts attention scores to weights."""

    scaling: float | None = None
    window: int | None = None  # in positions
    softcap: float | None = None  # limit of the attention scores, for Gemma 2
    # attention sinks, for gpt-oss: an extra score per head that takes part of the weight, [heads]
    sinks: torch.Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the weights are a plain softmax over all keys to which a row attends."""
        return self.window is None and self.fused

    @property
    def fused(self) -> bool:
        """Whether PyTorch has a fused attention kernel for these options."""
        return self.softcap is None and self.sinks is None


def dense_attention(
    query: torch.Tensor,  # [1, kv heads, rows, size]
    keys: torch.Tensor,  # [1, kv heads, keys, size]
    values: torch.Tensor,  # [1, kv heads, keys, value size]
    bias: torch.Tensor | None,  # [1, 1, rows, keys]
    options: AttentionOptions,
) -> torch.Tensor:
    """Return the attention output, [1, kv heads, rows, value size]. `bias` is added to the
    attention scores.
    """
    if options.fused:
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, scale=options.scaling
        )
    scaling = query.shape[3] ** -0.5 if options.scaling is None else options.scaling
    scores = query @ keys.transpose(2, 3) * scaling
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if bias is not None:
        scores = scores + bias
    if options.sinks is not None:
        sinks = options.sinks.to(query.dtype).reshape(1, query.shape[1], -1, 1)
        sinks = sinks.repeat_interleave(query.shape[2] // sinks.shape[2], 2)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1, dtype=torch.float32)[..., : keys.shape[2]]
    return weights.to(values.dtype) @ values
