"""Test whether two layers compute the same, with trial rows of very different magnitudes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ROWS = 4  # trial rows of each magnitude
SCALES = (1e-3, 1.0, 30.0, 1e3)  # magnitudes; a layer may clamp large numbers, or add a small one
ROUNDING = 8.0  # tolerance in units of the last place


@torch.inference_mode()
def equivalent(
    layer: nn.Module, other: Callable[..., Any], weight: torch.Tensor, *given: torch.Tensor
) -> bool:
    """Whether `other` computes the same as a layer, up to rounding. Both the layer and `other` are
    called with trial rows that fit `weight` [..., in] and its dtype, and with the arguments
    `given`. Return False if the layer has hooks, or if it cannot be called with these arguments.
    """
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    rows = trial_rows(weight)
    try:
        nudged = layer(_nudged(rows), *given)
        return _agree(layer(rows, *given), other(rows, *given), nudged, _allowed(rows))
    except Exception:  # an unsuitable layer may raise any error
        return False


def trial_rows(weight: torch.Tensor) -> torch.Tensor:
    """Return trial inputs of shape [rows, in] for a layer with weight [..., in]. Every magnitude in
    `SCALES` occurs.
    """
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, weight.shape[-1], generator=source) + 2  # the mean of a row is not 0
    return torch.cat([scale * rows for scale in SCALES]).to(weight)


def _allowed(rows: torch.Tensor) -> float:
    """Return how much rounding may change an output, as a fraction of the largest output of its
    row.
    """
    return ROUNDING * torch.finfo(rows.dtype).eps + _of_sums(rows)


def _of_sums(rows: torch.Tensor) -> float:
    """Return how much a sum over a row may change if its terms are added in another order, as a
    fraction of the magnitude of the terms. The rounding errors of float32 are random, so their sum
    grows with the square root of the row's length.
    """
    return math.sqrt(rows.shape[-1]) * torch.finfo(torch.float32).eps


def _nudged(rows: torch.Tensor) -> torch.Tensor:
    """Randomly increase or decrease each number of the rows by the possible rounding error of a
    sum. The outputs for the changed rows show how strongly such an error affects the layer. Layers
    that clamp large sums need this test: large sums have large rounding errors, but the clamped
    outputs are small.
    """
    source = torch.Generator().manual_seed(1)
    signs = torch.randint(2, rows.shape, generator=source).to(rows.device) * 2 - 1
    return (rows.float() * (1 + _of_sums(rows) * signs)).to(rows.dtype)


def _agree(output: Any, found: Any, nudged: Any, allowed: float) -> bool:
    """Whether two outputs are the same up to rounding. An output is a tensor or a tuple of tensors.
    In tuples, only floating-point tensors are compared. Where `output` is not finite, `found` may
    have any value.
    """
    if isinstance(output, tuple) and isinstance(found, tuple):
        triples = zip(output, found, nudged, strict=True)
        return all(_agree(*each, allowed) for each in triples if each[0].is_floating_point())
    if output.dtype != found.dtype or output.shape != found.shape:
        return False
    one, two = output.float(), found.float()
    size, moved = (_largest(each) for each in (one, nudged.float() - one))
    return bool((((one - two).abs() <= allowed * size + moved) | ~one.isfinite()).all())


def _largest(output: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude among the finite numbers of each row, [rows, 1]."""
    return output.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1, keepdim=True)
