"""The settings and functions that all kernel launches share."""

from __future__ import annotations

from typing import Any

import torch
import triton

# without fused multiply-add, every variant of a kernel rounds a product before adding it to a sum
STRICT: dict[str, Any] = {"enable_fp_fusion": False}


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less than a number."""
    return int(triton.next_power_of_2(number))


def precision(dtype: torch.dtype) -> str:
    """Return the precision with which `tl.dot` multiplies numbers of a dtype. Float32 numbers are
    multiplied without being rounded to TF32.
    """
    return "ieee" if dtype == torch.float32 else "tf32"
