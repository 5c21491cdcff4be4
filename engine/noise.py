"""Keyed noise: random numbers that are a pure function of (seed, position, token id).

It does not matter who draws, when, or how often (protocol: the acceptance walk). The hash runs in
wrapping integer arithmetic, so its bits are the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MASK_64 = (1 << 64) - 1


class Stream(Enum):
    """Noise that must not know of other noise: rejection sampling is biased if what is proposed,
    what is accepted and what is drawn instead share any.
    """

    DRAW = 0
    DRAFT = 0xA0761D6478BD642F
    ACCEPT = 0xE7037ED1A0B428DB
    RESIDUAL = 0x8EBC6AF09C88C6E3


def uniform(
    seed: int, position: int | Sequence[int], token_ids: torch.Tensor, stream: Stream = Stream.DRAW
) -> torch.Tensor:
    """One number in (0, 1) for each token id at a position, or [rows, tokens] at one position for
    each row; float64 of their shape.
    """
    low: int | torch.Tensor
    high: int | torch.Tensor
    if isinstance(position, int):
        low, high = _key(seed ^ stream.value, position)
    else:
        keys = [_key(seed ^ stream.value, each) for each in position]
        both = torch.tensor(keys, dtype=torch.int32, device=token_ids.device)  # [rows, 2]
        low, high = both[:, :1], both[:, 1:]
    state = _mix(_mix(token_ids.to(torch.int32) ^ low) ^ high)
    return (state.to(torch.float64) + (2**31 + 0.5)) * 2.0**-32


def gumbel(
    seed: int, position: int | Sequence[int], token_ids: torch.Tensor, stream: Stream = Stream.DRAW
) -> torch.Tensor:
    """The same as a Gumbel variate, float32: argmax(log p + it) is a draw from p (Gumbel-max)."""
    noise = uniform(seed, position, token_ids, stream)
    return -torch.log(-torch.log1p(-noise)).float()  # fine near 0, where the winners are


def _key(seed: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit words from (seed, position): SplitMix64 (Steele, Lea, Flood 2014)."""
    word = (seed + (position + 1) * _GOLDEN) & _MASK_64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK_64
    word ^= word >> 31
    return _signed(word & 0xFFFFFFFF), _signed(word >> 32)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _mix(state: torch.Tensor) -> torch.Tensor:
    """A bijective 32-bit mixer in wrapping int32 arithmetic (constants: Wellons' hash prospector,
    "lowbias32").
    """
    state = (state ^ _shift(state, 16)) * 0x7FEB352D
    state = (state ^ _shift(state, 15)) * _signed(0x846CA68B)
    return state ^ _shift(state, 16)


def _shift(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int32."""
    return (state >> bits) & ((1 << (32 - bits)) - 1)
