"""The settings that all launches of kernels share."""

from __future__ import annotations

from typing import Any

import torch
import triton

# rounds a product and a sum separately in every variant of a kernel
STRICT: dict[str, Any] = {"enable_fp_fusion": False}


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return int(triton.next_power_of_2(number))


def precision(dtype: torch.dtype) -> str:
    """Return the precision in which `tl.dot` multiplies a dtype: float32 is not rounded first."""
    return "ieee" if dtype == torch.float32 else "tf32"
