"""What all launches have in common."""

from __future__ import annotations

from typing import Any

import torch
import triton

# a product and a sum are two roundings in every variant of a kernel
STRICT: dict[str, Any] = {"enable_fp_fusion": False}


def power_of_two(number: int) -> int:
    """The smallest power of two that is no less."""
    return int(triton.next_power_of_2(number))


def precision(dtype: torch.dtype) -> str:
    """How numbers of a type are multiplied: float32 is not rounded before."""
    return "ieee" if dtype == torch.float32 else "tf32"
