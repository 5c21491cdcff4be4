"""Numbers whose products are sums that cancel: nothing is left of them but what rounding adds, and
that shows the order in which a kernel sums.
"""

from __future__ import annotations

import torch


def doubled(
    count: int, size: int, sign: int, order: torch.Tensor, source: torch.Generator
) -> torch.Tensor:
    """Rows [count, size] that hold some numbers as they are and again, in an `order` of theirs,
    times `sign`. Rows of one sign are orthogonal to those of the other.
    """
    some = torch.randn(count, len(order), generator=source)
    rest = torch.zeros(count, size - 2 * len(order))
    return torch.cat([some, sign * some[:, order], rest], 1)
