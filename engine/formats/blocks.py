"""Convert the blocks of the quantised types of GGUF files to groups of codes with scales and
minima. The groups represent, bit for bit, the numbers that the `gguf` package computes from the
blocks.

Each reader takes blocks of the shape [out, blocks, bytes]. A block holds the weights of one output
for 32 consecutive inputs. In the types whose names contain a K, a block covers 256 inputs, and each
scale is the product of a small integer and a float16 factor that the whole block shares. The
docstring of each reader lists the fields of a block in byte order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tandem.engine.forward.groups import Code, Groups

NIBBLE_SHIFTS, PAIR_SHIFTS, BIT_SHIFTS = (0, 4), (0, 2, 4, 6), tuple(range(8))


def q8_0(blocks: Tensor) -> Groups:
    """Read blocks of Q8_0: a scale, and 32 codes as signed bytes."""
    return _groups(Code.BYTES, blocks[..., 2:], _halves(blocks[..., :2]))


def q4_0(blocks: Tensor) -> Groups:
    """Read blocks of Q4_0: a scale, and 16 bytes of two codes each. The low halves of the bytes are
    the codes of the first 16 inputs, and the high halves are those of the last 16 inputs.
    """
    return _groups(Code.NIBBLES, _nibbles(blocks[..., 2:]), _halves(blocks[..., :2]), zero=8)


def q4_1(blocks: Tensor) -> Groups:
    """Read blocks of Q4_1: a scale, a minimum, and 16 bytes of two codes each, as in Q4_0."""
    return _groups(Code.NIBBLES, _nibbles(blocks[..., 4:]), _halves(blocks[..., :4]))


def q5_0(blocks: Tensor) -> Groups:
    """Read blocks of Q5_0: a scale, the fifth bits of 32 codes, and their four low bits."""
    codes = _nibbles(blocks[..., 6:]) | _fifth(blocks[..., 2:6]) << 4
    return _groups(Code.BYTES, codes - 16, _halves(blocks[..., :2]))


def q5_1(blocks: Tensor) -> Groups:
    """Read blocks of Q5_1: a scale, a minimum, the fifth bits of 32 codes, and their low bits."""
    codes = _nibbles(blocks[..., 8:]) | _fifth(blocks[..., 4:8]) << 4
    return _groups(Code.BYTES, codes, _halves(blocks[..., :4]))


def q2_k(blocks: Tensor) -> Groups:
    """Read blocks of Q2_K: 16 scales and 16 minima of 4 bits each, 256 codes of 2 bits, a factor of
    all scales, and a factor of all minima.
    """
    scales = torch.stack([blocks[..., :16] & 15, blocks[..., :16] >> 4], -1)
    codes = _split(blocks[..., 16:80], 32, PAIR_SHIFTS, 3)
    return _groups(Code.NIBBLES, codes, scales, _negated(blocks[..., 80:84]))


def q3_k(blocks: Tensor) -> Groups:
    """Read blocks of Q3_K: the third bits of 256 codes, their two low bits, 16 scales of 6 bits,
    and a factor of all scales.
    """
    bits = _split(blocks[..., :32], 32, BIT_SHIFTS, 1)
    codes = _split(blocks[..., 32:96], 32, PAIR_SHIFTS, 3) | bits << 2
    low = _split(blocks[..., 96:104], 8, NIBBLE_SHIFTS, 15)
    scales = (low | _split(blocks[..., 104:108], 4, PAIR_SHIFTS, 3) << 4) - 32
    return _groups(Code.NIBBLES, codes, scales[..., None], _halves(blocks[..., 108:110]), zero=4)


def q4_k(blocks: Tensor) -> Groups:
    """Read blocks of Q4_K: a factor of all scales, a factor of all minima, 8 scales and 8 minima of
    6 bits each, and 256 codes of 4 bits.
    """
    codes = _split(blocks[..., 16:], 32, NIBBLE_SHIFTS, 15)
    return _groups(Code.NIBBLES, codes, _scales(blocks), _negated(blocks[..., :4]))


def q5_k(blocks: Tensor) -> Groups:
    """Read blocks of Q5_K: a factor of all scales, a factor of all minima, 8 scales and 8 minima of
    6 bits each, the fifth bits of 256 codes, and their four low bits.
    """
    bits = _split(blocks[..., 16:48], 32, BIT_SHIFTS, 1)
    codes = _split(blocks[..., 48:], 32, NIBBLE_SHIFTS, 15) | bits << 4
    return _groups(Code.BYTES, codes, _scales(blocks), _negated(blocks[..., :4]))


def q6_k(blocks: Tensor) -> Groups:
    """Read blocks of Q6_K: the four low bits of 256 codes, their two high bits, 16 scales of 8
    bits, and a factor of all scales.
    """
    low = _split(blocks[..., :128], 64, NIBBLE_SHIFTS, 15)
    codes = (low | _split(blocks[..., 128:192], 32, PAIR_SHIFTS, 3) << 4) - 32
    scales = blocks[..., 192:208, None]
    return _groups(Code.BYTES, codes, scales, _halves(blocks[..., 208:210]))


READERS: dict[str, Callable[[Tensor], Groups]] = {
    read.__name__.upper(): read
    for read in (q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, q5_k, q6_k)
}
"""The reader for each quantised type of blocks, by the name of the type, e.g. `Q8_0`."""


def _groups(
    code: Code, codes: Tensor, scales: Tensor, supers: Tensor | None = None, zero: int = 0
) -> Groups:
    """Combine codes [out, blocks, ...] and their scales into Groups. If `supers` is None, the
    scales are float16 [out, blocks, 1 or 2]. Otherwise, the scales are integers [out, blocks,
    groups, 1 or 2], and each is multiplied by its entry in `supers`.
    """
    if supers is not None:
        scales = scales.view(torch.int8).flatten(1, 2)
    return Groups(code, codes.flatten(1).contiguous(), scales.contiguous(), supers, zero)


def _halves(stored: Tensor) -> Tensor:
    """Reinterpret stored bytes as float16 numbers of two bytes each."""
    return stored.contiguous().view(torch.float16)


def _negated(stored: Tensor) -> Tensor:
    """Return the float16 factors of scales and minima. The factor of minima is negated, because
    blocks of the K types subtract their minima, while groups add them.
    """
    return _halves(stored) * torch.tensor([1, -1], dtype=torch.float16, device=stored.device)


def _nibbles(stored: Tensor) -> Tensor:
    """Return the low halves of all bytes of a block, followed by the high halves."""
    return torch.cat([stored & 15, stored >> 4], -1)


def _fifth(stored: Tensor) -> Tensor:
    """Unpack the bits of the last dimension's bytes into one byte per bit, lowest bit first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=stored.device)
    bits: Tensor = (stored[..., None] >> shifts) & 1
    return bits.flatten(-2)


def _split(stored: Tensor, run: int, shifts: tuple[int, ...], mask: int) -> Tensor:
    """Extract one part of each byte for each of `shifts`: the byte is shifted right and masked with
    `mask`. Within each run of `run` bytes, the parts of the first shift come first, then the parts
    of the second shift, and so on.
    """
    runs = stored.unflatten(-1, (-1, 1, run))
    each = torch.tensor(shifts, dtype=torch.uint8, device=stored.device)
    parts: Tensor = (runs >> each[:, None]) & mask
    return parts.flatten(-3)


def _scales(blocks: Tensor) -> Tensor:
    """Return the 8 scales and 8 minima that bytes 4 to 15 store in 6 bits each, [out, blocks, 8,
    2].
    """
    scale, minimum, both = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([scale & 63, (both & 15) | ((scale >> 2) & 48)], -1)
    minima = torch.cat([minimum & 63, (both >> 4) | ((minimum >> 2) & 48)], -1)
    return torch.stack([scales, minima], -1)
