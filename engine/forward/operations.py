"""The operations that this project's layers call. Every operation runs the kernels for the device
on which its rows are stored.
"""

from __future__ import annotations

import torch
from torch import nn

from tandem.engine.cache.pool import store_rows
from tandem.engine.forward.cpu.kernels import Activation, required_kernels


def norm(rows: torch.Tensor, scale: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return rows [..., size], divided by their root mean square, times a float32 scale [size]."""
    if rows.device.type == "cuda":
        from tandem.engine.forward.cuda.kernels import norm as kernels

        return kernels.norm(rows, scale, epsilon)
    return required_kernels().norm(rows.contiguous(), scale, epsilon)


def add_norm(
    one: torch.Tensor, other: torch.Tensor, scale: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two results for two contiguous tensors of rows [..., size]: their sum, and the root
    mean square norm of the sum.
    """
    if one.device.type == "cuda":
        from tandem.engine.forward.cuda.kernels import norm as kernels

        return kernels.add_norm(one, other, scale, epsilon)
    return (sums := one + other), norm(sums, scale, epsilon)


def gated(inner: nn.Module, rows: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Apply the linear layer `inner` to rows [..., in], and return activation(first half) * second
    half of its outputs.
    """
    flat = rows.reshape(-1, rows.shape[-1])
    if rows.device.type == "cuda":
        from tandem.engine.forward.cuda.kernels import gated as kernels

        few = len(flat) <= kernels.FUSED_ROWS
        if few and isinstance(inner, nn.Linear) and inner.bias is None:
            found = kernels.gated_linear(flat, inner.weight, activation)
        else:
            found = kernels.gate(inner(flat), activation)
    else:
        found = required_kernels().gate(inner(flat), activation)
    return found.view(*rows.shape[:-1], found.shape[-1])


def rotate_store(
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, rows, size]
    value: torch.Tensor,  # [1, kv heads, rows, value size]
    cos: torch.Tensor,  # [1, 1, rows, size]
    sin: torch.Tensor,
    slots: torch.Tensor,  # int64 [rows]
    keys: torch.Tensor,  # [positions, kv heads, size]
    values: torch.Tensor,
) -> torch.Tensor:
    """Return the queries with rotary positions, [1, heads, rows, size]. Store the keys with rotary
    positions, and the values, in their slots.
    """
    if query.device.type == "cuda":
        from tandem.engine.forward.cuda.kernels import rotary as kernels

        return kernels.rotate_store(query, key, value, cos, sin, slots, keys, values)
    store_rows(keys, slots, _turned(key, cos, sin)[0].transpose(0, 1))
    store_rows(values, slots, value[0].transpose(0, 1))
    return _turned(query, cos, sin)


def _turned(given: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = given.chunk(2, -1)
    return given * cos + torch.cat([-two, one], -1) * sin
