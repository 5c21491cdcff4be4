"""Blocks of the quantised types that GGUF files have, as groups: the numbers that the `gguf`
package makes of them, bit for bit.

Each function takes blocks [out, blocks, bytes]. A block is 32 inputs of an output, or 256 for those
named K, whose scales are products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.engine.forward.groups import Code, Groups

NIBBLE_SHIFTS, PAIR_SHIFTS, BIT_SHIFTS = (0, 4), (0, 2, 4, 6), tuple(range(8))


def q8_0(blocks: Tensor) -> Groups:
    """Scale, 32 signed bytes."""
    return _groups(Code.BYTES, blocks[..., 2:], _halves(blocks[..., :2]))


def q4_0(blocks: Tensor) -> Groups:
    """Scale, 16 bytes: the low halves are the first inputs."""
    return _groups(Code.NIBBLES, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]), zero=8)


def q4_1(blocks: Tensor) -> Groups:
    """Scale, minimum, the same."""
    return _groups(Code.NIBBLES, _nibbles(blocks[..., 4:]), _halves(blocks[..., :4]))


def q5_0(blocks: Tensor) -> Groups:
    """Scale, the fifth bits, the others."""
    codes = _nibbles(blocks[..., 6:]) | _fifth(blocks[..., 2:6]) << 4
    return _groups(Code.BYTES, codes - 16, _halves(blocks[..., :2]))


def q5_1(blocks: Tensor) -> Groups:
    """Scale, minimum, the same."""
    codes = _nibbles(blocks[..., 8:]) | _fifth(blocks[..., 4:8]) << 4
    return _groups(Code.BYTES, codes, _halves(blocks[..., :4]))


def q2_k(blocks: Tensor) -> Groups:
    """16 scales and minima, codes, what multiplies them."""
    scales = torch.stack([blocks[..., :16] & 15, blocks[..., :16] >> 4], -1)
    codes = _split(blocks[..., 16:80], 32, PAIR_SHIFTS, 3)
    return _groups(Code.NIBBLES, codes, scales, _negated(blocks[..., 80:84]))


def q3_k(blocks: Tensor) -> Groups:
    """The third bits, the others, 16 scales of 6 bits, what multiplies them."""
    bits = _split(blocks[..., :32], 32, BIT_SHIFTS, 1)
    codes = _split(blocks[..., 32:96], 32, PAIR_SHIFTS, 3) | bits << 2
    low = _split(blocks[..., 96:104], 8, NIBBLE_SHIFTS, 15)
    scales = (low | _split(blocks[..., 104:108], 4, PAIR_SHIFTS, 3) << 4) - 32
    return _groups(Code.NIBBLES, codes, scales[..., None], _halves(blocks[..., 108:110]), zero=4)


def q4_k(blocks: Tensor) -> Groups:
    """What multiplies scales and minima, 8 of each of 6 bits, codes."""
    codes = _split(blocks[..., 16:], 32, NIBBLE_SHIFTS, 15)
    return _groups(Code.NIBBLES, codes, _scales(blocks), _negated(blocks[..., :4]))


def q5_k(blocks: Tensor) -> Groups:
    """The same, with the fifth bits before the codes."""
    bits = _split(blocks[..., 16:48], 32, BIT_SHIFTS, 1)
    codes = _split(blocks[..., 48:], 32, NIBBLE_SHIFTS, 15) | bits << 4
    return _groups(Code.BYTES, codes, _scales(blocks), _negated(blocks[..., :4]))


def q6_k(blocks: Tensor) -> Groups:
    """Four bits of codes, two more, 16 scales, what multiplies them."""
    low = _split(blocks[..., :128], 64, NIBBLE_SHIFTS, 15)
    codes = (low | _split(blocks[..., 128:192], 32, PAIR_SHIFTS, 3) << 4) - 32
    scales = blocks[..., 192:208, None]
    return _groups(Code.BYTES, codes, scales, _halves(blocks[..., 208:210]))


READERS: dict[str, Callable[[Tensor], Groups]] = {
    read.__name__.upper(): read
    for read in (q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k)
}
"""By the name of a type."""


def _groups(
    code: Code, codes: Tensor, scales: Tensor, supers: Tensor | None = None, zero: int = 0
) -> Groups:
    """Of codes [out, blocks, ...], float16 scales [out, blocks, 1 or 2], or others that `supers`
    multiply, [out, blocks, groups, 1 or 2].
    """
    if supers is not None:
        scales = scales.view(torch.int8).flatten(1, 2)
    return Groups(code, codes.flatten(1).contiguous(), scales.contiguous(), supers, zero)


def _halves(stored: Tensor) -> Tensor:
    return stored.contiguous().view(torch.float16)


def _negated(stored: Tensor) -> Tensor:
    """A minimum is subtracted there."""
    return _halves(stored) * torch.tensor([1, -1], dtype=torch.float16)


def _nibbles(stored: Tensor) -> Tensor:
    return torch.cat([stored & 15, stored >> 4], -1)


def _fifth(stored: Tensor) -> Tensor:
    """The bits of four bytes, lowest first."""
    bits: Tensor = (stored[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.flatten(-2)


def _split(stored: Tensor, run: int, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Parts of bytes, each part of a run of bytes after the one before."""
    runs = stored.unflatten(-1, (-1, 1, run))
    parts: Tensor = (runs >> torch.tensor(shifts, dtype=torch.uint8)[:, None]) & mask
    return parts.flatten(-3)


def _scales(blocks: Tensor) -> Tensor:
    """8 scales and minima of 6 bits in 12 bytes, [out, blocks, 8, 2]."""
    scale, minimum, both = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([scale & 63, (both & 15) | ((scale >> 2) & 48)], -1)
    minima = torch.cat([minimum & 63, (both >> 4) | ((minimum >> 2) & 48)], -1)
    return torch.stack([scales, minima], -1)
