"""What rows of queries take from a stretch of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How a layer turns scores into weights."""

    scaling: float | None = None
    window: int | None = None
    softcap: float | None = None  # Gemma 2
    sinks: torch.Tensor | None = None  # gpt-oss: a score per head that takes weight, [heads]

    @property
    def plain(self) -> bool:
        """Whether it is a softmax over all that a row sees."""
        return self.window is None and self.fused

    @property
    def fused(self) -> bool:
        """Whether torch has a kernel for it."""
        return self.softcap is None and self.sinks is None


def dense_attention(
    query: torch.Tensor,  # [1, kv heads, rows, size]
    keys: torch.Tensor,  # [1, kv heads, keys, size]
    values: torch.Tensor,  # [1, kv heads, keys, value size]
    bias: torch.Tensor | None,  # [1, 1, rows, keys]
    options: AttentionOptions,
) -> torch.Tensor:
    """Attention, [1, kv heads, rows, value size]."""
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
