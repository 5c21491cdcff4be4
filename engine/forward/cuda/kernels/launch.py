"""The settings that all launches of kernels share."""

from __future__ import annotations

from typing import Any

import torch
import triton

# every variant of a kernel rounds a product before adding it to a sum
STRICT: dict[str, Any] = {"enable_fp_fusion": False}


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return int(triton.next_power_of_2(number))


def precision(dtype: torch.dtype) -> str:
    """Return the precision in which `tl.dot` multiplies a dtype. Float32 is not rounded before it
    is multiplied.
    """
    return "ieee" if dtype == torch.float32 else "tf32"
