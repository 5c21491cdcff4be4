"""Whether two layers compute the same, found by trying rows of very different sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

ROWS = 4
SCALES = (1e-3, 1.0, 30.0, 1e3)  # a layer may clamp, or add something small
ROUNDING = 8.0  # units of the largest output of a row


@torch.inference_mode()
def equivalent(
    layer: nn.Module, other: Callable[[torch.Tensor], torch.Tensor], like: nn.Module
) -> bool:
    """Whether `other` computes what a layer does of rows as wide as a weight's last dimension, and
    of its dtype, up to rounding. Not if the layer has hooks, or cannot be given rows alone.
    """
    if layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight: torch.Tensor = like.weight  # type: ignore[assignment]
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, weight.shape[-1], generator=source) + 2  # no mean of 0
    try:
        return all(_agree(layer, other, (scale * rows).to(weight)) for scale in SCALES)
    except Exception:  # a layer of another form raises whatever it likes
        return False


def _agree(
    layer: nn.Module, other: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor
) -> bool:
    output: torch.Tensor = layer(rows)
    found = other(rows)
    if output.dtype != rows.dtype or found.shape != output.shape:
        return False
    one, two = output.float(), found.float()
    size = one.nan_to_num(posinf=0.0, neginf=0.0).abs().amax(-1, keepdim=True)
    near = (one - two).abs() <= ROUNDING * torch.finfo(rows.dtype).eps * size
    return bool((near | (one == two) | (one.isnan() & two.isnan())).all())
