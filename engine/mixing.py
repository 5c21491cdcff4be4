"""What rows of queries take from a stretch of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

AT_ONCE = 32  # rows that a kernel takes; how it rounds depends on how many are left
KEYS_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class Rule:
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


@dataclass(frozen=True, slots=True)
class Grain:
    """Shapes of which kernels round alike. `width`: heads are padded to a multiple of it. `least`:
    kernels take `AT_ONCE` rows; if fewer than these are left, some are added.
    """

    width: int
    least: int

    def padding(self, count: int, repeat: int) -> int:
        """How many rows to add to `count`, each of which stands for `repeat` query heads."""
        pad = 0
        while 1 <= (count + pad) * repeat % AT_ONCE < self.least:
            pad += 1
        return pad


def mix(
    query: torch.Tensor,  # [1, kv heads, rows, size]
    keys: torch.Tensor,  # [1, kv heads, keys, size]
    values: torch.Tensor,  # [1, kv heads, keys, value size]
    bias: torch.Tensor | None,  # [1, 1, rows, keys]
    rule: Rule,
    grain: Grain | None = None,
) -> torch.Tensor:
    """Attention, [1, kv heads, rows, value size]; with a grain, of rows that are padded to it."""
    if not rule.fused:
        return _spelled_out(query, keys, values, bias, rule, grain)
    scaling, size = rule.scaling, values.shape[3]
    if grain and (query.shape[3] % grain.width or size % grain.width):
        scaling = query.shape[3] ** -0.5 if scaling is None else scaling
        query, keys, values = (
            F.pad(each, (0, -each.shape[3] % grain.width)) for each in (query, keys, values)
        )
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scaling)
    return mixed[..., :size]


def _spelled_out(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    rule: Rule,
    grain: Grain | None,
) -> torch.Tensor:
    """The same with capped scores or sinks; with a grain, in pieces of rows and of keys."""
    count, sinks = query.shape[2], rule.sinks
    few, some = (AT_ONCE, KEYS_AT_ONCE) if grain else (count, keys.shape[2])
    if sinks is not None:
        sinks = sinks.to(query.dtype).reshape(1, query.shape[1], -1, 1)
        sinks = sinks.repeat_interleave(count // sinks.shape[2], 2)
    scaling = query.shape[3] ** -0.5 if rule.scaling is None else rule.scaling
    mixed = []
    for start in range(0, count, few):
        rows = slice(start, start + few)
        asking = query[:, :, rows]
        scores = torch.cat([asking @ piece.transpose(2, 3) for piece in keys.split(some, 2)], -1)
        scores = scores * scaling
        if rule.softcap is not None:
            scores = torch.tanh(scores / rule.softcap) * rule.softcap
        if bias is not None:
            scores = scores + bias[:, :, rows]
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, :, rows]], -1)
        weights = scores.softmax(-1, dtype=torch.float32)[..., : keys.shape[2]].to(values.dtype)
        pieces = zip(weights.split(some, 3), values.split(some, 2), strict=True)
        mixed.append(torch.stack([(part @ piece).float() for part, piece in pieces]).sum(0))
    return torch.cat(mixed, 2).to(values.dtype)
