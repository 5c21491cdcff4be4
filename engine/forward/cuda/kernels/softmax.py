"""Compute a softmax over keys that are processed block by block. The state of this running softmax
is the highest score so far (`top`), the sum of the weights (`total`), and the weighted sum of the
values (`mixed`).
"""

from __future__ import annotations

import triton
import triton.language as tl

NOTHING = tl.constexpr(-1e30)  # lower than every key's score


@triton.jit
def _seen(scores, scale, cap, mask, CAPPED: tl.constexpr):
    """Return the final attention scores: scaled, capped if CAPPED is set, and minus infinity for
    keys to which a row does not attend.
    """
    scores = scores * scale
    if CAPPED:
        scores = cap * (1.0 - 2.0 / (tl.exp(2.0 * (scores / cap)) + 1.0))
    return tl.where(mask, scores, -float("inf"))


@triton.jit
def add(
    asked, keys, values, slot, seen, mask, scale, cap, top, total, mixed, SIZE: tl.constexpr,
    LANES: tl.constexpr, VALUES: tl.constexpr, VALUE_LANES: tl.constexpr, CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Update the running softmax with the keys and values in the given slots. `seen` marks the keys
    to which at least one row attends; only these keys are loaded. `mask` marks the keys to which
    each row attends.
    """
    lane, value_lane = tl.arange(0, LANES), tl.arange(0, VALUE_LANES)
    key = tl.load(
        keys + slot[None, :] * SIZE + lane[:, None],
        mask=seen[None, :] & (lane < SIZE)[:, None],
        other=0.0,
    )
    scores = _seen(tl.dot(asked, key, input_precision=PRECISION), scale, cap, mask, CAPPED)
    value = tl.load(
        values + slot[:, None] * VALUES + value_lane[None, :],
        mask=seen[:, None] & (value_lane < VALUES)[None, :],
        other=0.0,
    )
    higher = tl.maximum(top, tl.max(scores, 1))
    factor = tl.exp(top - higher)
    weights = tl.exp(scores - higher[:, None])
    total = total * factor + tl.sum(weights, 1)
    mixed = mixed * factor[:, None]
    mixed = tl.dot(weights.to(value.dtype), value, mixed, input_precision=PRECISION)
    return higher, total, mixed


@triton.jit
def join(
    number, chunks, mixed_at, sums_at, fits, top, total, mixed, VALUES: tl.constexpr,
    VALUE_LANES: tl.constexpr,
):  # fmt: skip
    """Merge the results for the chunks of a prefix into the running softmax, in ascending order of
    the chunks.
    """
    value_lane = tl.arange(0, VALUE_LANES)
    for chunk in range(chunks):
        its_top = tl.load(sums_at + (number + chunk) * 2, mask=fits, other=NOTHING)
        its_total = tl.load(sums_at + (number + chunk) * 2 + 1, mask=fits, other=0.0)
        its_mixed = tl.load(
            mixed_at + (number + chunk)[:, None] * VALUES + value_lane[None, :],
            mask=fits[:, None] & (value_lane < VALUES)[None, :],
            other=0.0,
        )
        higher = tl.maximum(top, its_top)
        own, its = tl.exp(top - higher), tl.exp(its_top - higher)
        total = total * own + its_total * its
        mixed = mixed * own[:, None] + its_mixed * its[:, None]
        top = higher
    return top, total, mixed
