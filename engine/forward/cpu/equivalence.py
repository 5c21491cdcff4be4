"""Whether two layers compute the same, found by trying rows of very different sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

ROWS = 4  # of each size
SCALES = (1e-3, 1.0, 30.0, 1e3)  # a layer may clamp, or add something small
ROUNDING = 8.0  # units of the last place


@torch.inference_mode()
def equivalent(
    layer: nn.Module, other: Callable[..., Any], weight: torch.Tensor, *given: torch.Tensor
) -> bool:
    """Whether `other` computes what a layer does of rows as wide as the last dimension of its
    weight, and of its dtype, up to rounding; both are `given` the same besides. Not if the layer
    has hooks, or cannot be given just that.
    """
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    rows = trial_rows(weight)
    try:
        return _agree(layer(rows, *given), other(rows, *given), _allowed(rows))
    except Exception:  # a layer of another form raises whatever it likes
        return False


def trial_rows(weight: torch.Tensor) -> torch.Tensor:
    """Rows that can be multiplied with a weight [..., in]: [ROWS * sizes, in]."""
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, weight.shape[-1], generator=source) + 2  # no mean of 0
    return torch.cat([scale * rows for scale in SCALES]).to(weight)


def _allowed(rows: torch.Tensor) -> float:
    """How far rounding may carry a number, as a share of the largest output of its row. A sum over
    a row in another order is off at random: by the root of its length, in units of float32.
    """
    units = ROUNDING * torch.finfo(rows.dtype).eps
    return units + math.sqrt(rows.shape[-1]) * torch.finfo(torch.float32).eps


def _agree(output: Any, found: Any, allowed: float) -> bool:
    """Whether two outputs are the same up to rounding: tensors, or tuples of which numbers that are
    no integers count. What overflows in a layer may be anything in the other.
    """
    if isinstance(output, tuple) and isinstance(found, tuple):
        pairs = zip(output, found, strict=True)
        return all(_agree(*pair, allowed) for pair in pairs if pair[0].is_floating_point())
    if output.dtype != found.dtype or output.shape != found.shape:
        return False
    one, two = output.float(), found.float()
    size = one.nan_to_num(posinf=0.0, neginf=0.0).abs().amax(-1, keepdim=True)
    return bool((((one - two).abs() <= allowed * size) | ~one.isfinite()).all())
