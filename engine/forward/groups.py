"""Weights that are quantized to codes of 8 or 4 bits. The inputs of each output are divided into
groups. Every group has a scale and may have a minimum. This module does not depend on file formats
or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import torch

GROUPS = (256, 128, 64, 32, 16)  # group sizes that the kernels support, in inputs
LEVELS = 127  # the largest magnitude of a code of 8 bits


class Code(IntEnum):
    """The types of quantized codes, with the same values as in vectors.h."""

    BYTES = 4  # a signed integer
    NIBBLES = 5  # an integer from 0 to 15
    FLOAT8 = 6  # a float in the format e4m3


@dataclass(frozen=True, slots=True)
class Groups:
    """A quantized weight [out, in]. Each of its numbers is code * scale + minimum, rounded to
    float32 once. If `supers` is given, each scale and each minimum is multiplied by its entry in
    `supers`. Several groups share an entry of `supers`, as in the K-quant types of GGUF. If no
    minima are stored, the minimum is -zero * scale.
    """

    code: Code
    codes: torch.Tensor  # [out, in], uint8 for every type of code
    scales: torch.Tensor  # [out, groups, 1 or 2], float32, float16 or int8
    supers: torch.Tensor | None = None  # [out, supers, 1 or 2], float16
    zero: int = 0

    @property
    def group(self) -> int:
        """The number of inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    def rows(self, chosen: slice | torch.Tensor) -> Groups:
        """Return the quantized weights of the chosen outputs."""
        supers = None if self.supers is None else self.supers[chosen]
        return replace(self, codes=self.codes[chosen], scales=self.scales[chosen], supers=supers)

    def factors(self) -> torch.Tensor:
        """Return the scales and any minima as [out, groups, 1 or 2] float32. If `supers` is given,
        the scales and minima are multiplied by their entries in `supers`.
        """
        scales = self.scales.float()
        if self.supers is None:
            return scales
        times = scales.shape[1] // self.supers.shape[1]
        return scales * self.supers.float().repeat_interleave(times, 1)

    def numbers(self) -> torch.Tensor:
        """Return the dequantized weight, [out, in] float32."""
        scales = self.factors()
        minima = scales[..., 1:] if scales.shape[2] == 2 else scales * -float(self.zero)
        codes = self.codes.unflatten(1, (scales.shape[1], -1))
        if self.code is Code.NIBBLES:
            values = codes.float()
        else:
            stored = torch.int8 if self.code is Code.BYTES else torch.float8_e4m3fn
            values = codes.view(stored).float()
        made: torch.Tensor = values.mul_(scales[..., :1]).add_(minima).flatten(1)
        return made


def kernel_group(inputs: int, groups: int) -> int | None:
    """Choose a group size for `inputs` inputs that are stored in `groups` equal groups. Return the
    largest size that the kernels support and that divides the size of a stored group, or None if
    there is none.
    """
    size, remainder = divmod(inputs, groups)
    return None if remainder else next((each for each in GROUPS if size % each == 0), None)


def grouped(code: Code, codes: torch.Tensor, scales: torch.Tensor, zero: int = 0) -> Groups | None:
    """Return quantized codes as `Groups` of a size that the kernels support, or None if no
    supported size fits. Larger groups are split into smaller ones, so scales [out, groups, 1 or 2]
    are repeated.
    """
    inputs, groups = codes.shape[1], scales.shape[1]
    fitting = kernel_group(inputs, groups)
    if fitting is None:
        return None
    times = inputs // groups // fitting
    return Groups(code, codes, scales.repeat_interleave(times, 1), None, zero)


def rounded(weight: torch.Tensor) -> Groups | None:
    """Quantize a weight [out, in] to 8 bits, in groups of 32 inputs, or in groups of 16 if the
    number of inputs is not a multiple of 32. Return None if the number of inputs is not a multiple
    of 16.
    """
    size = next((each for each in (32, 16) if weight.shape[1] % each == 0), None)
    if size is None:
        return None
    split = weight.float().unflatten(1, (-1, size))
    scales = (split.abs().amax(2, keepdim=True) / LEVELS).clamp_min(1e-12)
    codes = (split / scales).round().to(torch.int8).flatten(1).view(torch.uint8)
    return Groups(Code.BYTES, codes, scales)
