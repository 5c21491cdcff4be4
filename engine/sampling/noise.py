"""Keyed noise: random numbers that are a pure function of (seed, position, token id).

Therefore a draw gives the same token in every process and every time that it is repeated. The hash
uses wrapping integer arithmetic, so its bits are the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.sampling.uploads import upload

Ints: TypeAlias = int | Sequence[int]  # one number for all rows, or one for each row


class NoiseStream(Enum):
    """Streams of noise that are independent of each other. Rejection sampling would be biased if
    proposed tokens, acceptance and replacement tokens were drawn with the same noise.
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
    """Return a uniform random number in (0, 1) for each token id at a position, float64 in the
    shape of the ids. If `position` or `seed` has one value per row, returns [rows, tokens].
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
    """Return keyed noise as Gumbel variates, float32 in the shape that `uniform` returns:
    argmax(log p + noise) is a draw from p (Gumbel-max).
    """
    noise = uniform(seed, position, token_ids, stream)
    # log1p is precise near 0, and the winning tokens have noise near 0
    return -torch.log(-torch.log1p(-noise)).float()


def _hash(seed: Ints, position: Ints, token_ids: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits for each token id at a position, int32 in the shape of the ids or
    [rows, tokens].

    The hash is mix(mix(id ^ low) ^ high), where mix is a bijective 32-bit mixer in wrapping int32
    arithmetic (Wellons' hash prospector, "lowbias32") and low and high are the words of the key.
    Each mix begins and ends with a fold, which xors the upper half of a word into its lower half.
    Two consecutive folds cancel each other, and the fold of a xor is the xor of the folds.
    Therefore, between the two mixes only the fold of the key remains, and `keys` returns words that
    are already folded.
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
    """Return the hash key of each pair of a seed and a position: two folded, signed 32-bit words,
    [rows, 2]. The words are the halves of a 64-bit word of SplitMix64 (Steele, Lea, Flood 2014).
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
    """Mix 32-bit words in place, but leave out the folds at the beginning and at the end of the
    mix.
    """
    state.mul_(0x7FEB352D)
    state.bitwise_xor_(_shift(state, 15))
    return state.mul_(_signed(0x846CA68B))


def _fold(state: torch.Tensor) -> torch.Tensor:
    """Return 32-bit words with the upper half xored into the lower half."""
    return _shift(state, 16).bitwise_xor_(state)


def _shift(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int32 numbers right as if they were unsigned."""
    return (state >> bits).bitwise_and_((1 << (32 - bits)) - 1)
