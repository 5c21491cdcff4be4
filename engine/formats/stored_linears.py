"""Hold the weight of a linear layer in 8 or 4 bits, with a scale for every group of inputs, in one
form for all file formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.engine.forward.grouped_weight import NUMBERS_AT_ONCE, GroupedWeight, StoredGroups
from tandem.engine.forward.groups import Code, Groups, grouped, kernel_group

TYPES = {Code.BYTES: torch.int8, Code.FLOAT8: torch.float8_e4m3fn}


@dataclass(frozen=True)
class StoredLinear:
    """A weight [out, in] as it is stored; each of its numbers is (code - zero) * scale."""

    code: Code
    codes: torch.Tensor  # [out, bytes], uint8; codes of 4 bits lie two in a byte, the low one first
    scales: torch.Tensor  # [out, groups]
    zeros: torch.Tensor | None = None  # [out, groups], int32; None if all zeros are 0
    # [in], the group of each input; None if the groups lie in order
    group_of: torch.Tensor | None = None

    @property
    def inputs(self) -> int:
        """The number of inputs of the layer."""
        return self.codes.shape[1] * (2 if self.code is Code.NIBBLES else 1)

    def weight(self, dtype: torch.dtype, stays: bool) -> torch.Tensor:
        """Return the weight in quantised groups if `stays` is true and the kernels support the
        groups; otherwise return it dequantised to `dtype`.
        """
        fits = self.group_of is None and kernel_group(self.inputs, self.scales.shape[1])
        if stays and fits:
            return GroupedWeight([self._part()], dtype)
        step = max(1, NUMBERS_AT_ONCE // self.inputs)
        made = torch.empty(len(self.codes), self.inputs, dtype=dtype)
        for start in range(0, len(made), step):
            made[start : start + step] = self._numbers(slice(start, start + step))
        return made

    def _part(self) -> StoredGroups:
        """Return this weight as a part of a GroupedWeight. Each group has a scale and, unless all
        zeros are equal, a minimum.
        """
        zeros = 0 if self.zeros is None else int(self.zeros.flatten()[0])
        if self.zeros is None or bool((self.zeros == zeros).all()):
            scales = self.scales.float() if self.scales.dtype is torch.bfloat16 else self.scales
            return StoredGroups(
                (self.codes, scales[..., None].contiguous()), self.inputs, Reader(self.code, zeros)
            )
        scales = self.scales.float()
        both = torch.stack([scales, -self.zeros * scales], -1)
        return StoredGroups((self.codes, both), self.inputs, Reader(self.code, 0))

    def _numbers(self, chosen: slice) -> torch.Tensor:
        """Return the dequantised weights of some outputs, [chosen, in] float32."""
        codes, scales = unpacked(self.codes[chosen], self.code), self.scales[chosen].float()
        zeros = torch.zeros_like(scales) if self.zeros is None else self.zeros[chosen].float()
        each = self.group_of
        if each is None:
            each = torch.arange(self.inputs) // (self.inputs // scales.shape[1])
        values = codes.view(TYPES.get(self.code, torch.uint8)).float()
        return (values - zeros[:, each]) * scales[:, each]


@dataclass(frozen=True)
class Reader:
    """Converts stored bytes and scales to the groups that the kernels use. The stored groups have a
    size that the kernels support, or a multiple of such a size.
    """

    code: Code
    zero: int

    def __call__(self, codes: torch.Tensor, scales: torch.Tensor) -> Groups:
        """Combine stored codes [out, bytes] and scales [out, groups, 1 or 2] into Groups."""
        made = grouped(self.code, unpacked(codes, self.code), scales, self.zero)
        assert made, "the kernels support this group size"
        return made


def unpacked(codes: torch.Tensor, code: Code) -> torch.Tensor:
    """Unpack the codes in bytes [..., n] into a byte for each code."""
    if code is not Code.NIBBLES:
        return codes
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
