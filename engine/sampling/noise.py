"""Keyed noise: random numbers that are a pure function of (seed, position, token id).

It does not matter who draws, when, or how often (protocol: the acceptance walk). The hash runs in
wrapping integer arithmetic, so its bits are the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.sampling.uploads import upload

Ints: TypeAlias = int | Sequence[int]  # one for all rows, or one for each


class NoiseStream(Enum):
    """Noise that must not know of other noise: rejection sampling is biased if what is proposed,
    what is accepted and what is drawn instead share any.
    """

    DRAW = 0
    DRAFT = 0xA0761D6478BD642F
    ACCEPT = 0xE7037ED1A0B428DB
    RESIDUAL = 0x8EBC6AF09C88C6E3


def uniform(
    seed: Ints,
    position: Ints,
    token_ids: torch.Tensor,
    stream: NoiseStream = NoiseStream.DRAW,
) -> torch.Tensor:
    """One number in (0, 1) for each token id at a position, or [rows, tokens] at one position for
    each row, with one seed for each of them or for all; float64 of their shape.
    """
    salted = seed ^ stream.value if isinstance(seed, int) else [s ^ stream.value for s in seed]
    state = _hash(salted, position, token_ids)
    return (state.to(torch.float64) + (2**31 + 0.5)) * 2.0**-32


def gumbel(
    seed: Ints,
    position: Ints,
    token_ids: torch.Tensor,
    stream: NoiseStream = NoiseStream.DRAW,
) -> torch.Tensor:
    """The same as a Gumbel variate, float32: argmax(log p + it) is a draw from p (Gumbel-max)."""
    noise = uniform(seed, position, token_ids, stream)
    return -torch.log(-torch.log1p(-noise)).float()  # fine near 0, where the winners are


def _hash(seed: Ints, position: Ints, token_ids: torch.Tensor) -> torch.Tensor:
    """32 bits for each token id at a position, int32 of its shape, or [rows, tokens].

    It is a bijective 32-bit mixer of id ^ low, and again of that ^ high, in wrapping int32
    arithmetic (Wellons' hash prospector, "lowbias32"). A round folds first and last. Folding twice
    is nothing, and a fold of a xor is the xor of folds; so between the rounds only the key's is
    left.
    """
    low: int | torch.Tensor
    high: int | torch.Tensor
    if isinstance(seed, int) and isinstance(position, int):
        low, high = map(int, keys([seed], [position])[0])
    else:
        seeds = [seed] * len(position) if isinstance(seed, int) else seed  # type: ignore[arg-type]
        positions = [position] * len(seeds) if isinstance(position, int) else position
        both = upload(keys(seeds, positions), token_ids.device)  # [rows, 2]
        low, high = both[:, :1], both[:, 1:]
    return _fold(_mix(_mix(_fold(token_ids.to(torch.int32)) ^ low).bitwise_xor_(high)))


def keys(seeds: npt.ArrayLike, positions: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Two signed 32-bit words, folded, from each (seed, position): SplitMix64 (Steele, Lea, Flood
    2014); [rows, 2].
    """
    word = np.asarray(positions, np.int64).astype(np.uint64) + np.uint64(1)
    word = np.asarray(seeds, np.uint64) + word * np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    words = np.stack([word.astype(np.uint32), (word >> np.uint64(32)).astype(np.uint32)], 1)
    return (words ^ (words >> np.uint32(16))).view(np.int32)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _mix(state: torch.Tensor) -> torch.Tensor:
    """A round without its folds, in place."""
    state.mul_(0x7FEB352D)
    state.bitwise_xor_(_shift(state, 15))
    return state.mul_(_signed(0x846CA68B))


def _fold(state: torch.Tensor) -> torch.Tensor:
    """The lower half xor the upper one."""
    return _shift(state, 16).bitwise_xor_(state)


def _shift(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int32."""
    return (state >> bits).bitwise_and_((1 << (32 - bits)) - 1)
