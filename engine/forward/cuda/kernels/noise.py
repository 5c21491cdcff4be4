"""Compute the keyed noise of `engine.sampling.noise` in the form that the sampling kernels need."""

from __future__ import annotations

import triton
import triton.language as tl

SMALL = tl.constexpr(0.0625)  # for smaller uniform numbers, `tl.log` is not precise enough


@triton.jit
def below(logits, top):
    """Return how far each logit is below the highest logit. The highest logit may be infinite."""
    return tl.where(logits == top, 0.0, top - logits)


@triton.jit
def exponential(ids, low, high):
    """Return e^-noise for each token id, with a relative error below 2e-6. The result is -log(1 -
    u) for the uniform numbers u of `engine.sampling.noise`.
    """
    state = _fold(_mix(_mix(_fold(ids.to(tl.uint32)) ^ low) ^ high)) ^ 0x80000000
    uniform = (state.to(tl.float32) + 0.5) * 2.0**-32
    rest = ((state ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32  # 1 minus the uniform number
    series = uniform * (1 / 5 + uniform * (1 / 6))
    series = uniform * (1 / 3 + uniform * (1 / 4 + series))
    series = uniform * (1 + uniform * (1 / 2 + series))
    return tl.where(uniform < SMALL, series, -tl.log(rest))


@triton.jit
def _mix(state):
    """Compute one round of the hash function, except the steps that `_fold` computes."""
    state *= 0x7FEB352D
    state ^= state >> 15
    return state * 0x846CA68B


@triton.jit
def _fold(state):
    """XOR the lower half of a word with its upper half."""
    return state ^ (state >> 16)
