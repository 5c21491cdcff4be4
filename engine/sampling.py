"""From logits to the next token: warp, add keyed noise, take the maximum.

The noise is a Gumbel variate made by a counter-based hash of (seed, position, token id), so a draw
is a pure function: it does not matter who draws, when, or how often (protocol: the acceptance
walk). Source of the trick: Gumbel-max.
"""

from __future__ import annotations

import torch
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from protos.types import SamplingParams

_GOLDEN = 0x9E3779B97F4A7C15
_MASK_64 = (1 << 64) - 1


def warp(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Log-probabilities of the distribution to draw from, [rows, vocab]; temperature, then top-k,
    then top-p.
    """
    warpers = LogitsProcessorList()
    if not sampling.greedy and sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    logits = logits - logits.amax(-1, keepdim=True)  # else a tiny temperature would make infinities
    no_ids = torch.LongTensor(logits.shape[0], 0)  # these warpers look at the scores alone
    return warpers(no_ids, logits).log_softmax(-1)


def gumbel(seed: int, position: int, token_ids: torch.Tensor) -> torch.Tensor:
    """The noise of token ids at a position, float32 of their shape; the same bits from the hash on
    every device.
    """
    low, high = _key(seed, position)
    state = _mix(_mix(token_ids.to(torch.int32) ^ low) ^ high)
    uniform = (state.to(torch.float64) + (2**31 + 0.5)) * 2.0**-32  # (0, 1)
    return -torch.log(-torch.log1p(-uniform)).float()  # fine near 0, where the winners are


def draw(logits: torch.Tensor, sampling: SamplingParams, position: int) -> int:
    """The target's own choice for a position from its logits, [vocab]; ties go to the lowest id."""
    if sampling.greedy:
        return int(logits.argmax())
    scores = warp(logits[None], sampling)[0]
    ids = torch.arange(scores.shape[0], dtype=torch.int32, device=scores.device)
    return int((scores + gumbel(sampling.seed, position, ids)).argmax())


def perturbed(
    logits: torch.Tensor, sampling: SamplingParams, position: int, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` likeliest token ids of each row and their scores with noise, [rows, count] each,
    unordered.

    What a drafter ranks: it only guesses, so noise on its likeliest tokens is enough.
    """
    scores = logits.log_softmax(-1) if sampling.greedy else warp(logits, sampling)
    top = scores.topk(min(count, scores.shape[-1]), dim=-1)
    if sampling.greedy:
        return top.indices, top.values
    return top.indices, top.values + gumbel(sampling.seed, position, top.indices)


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
