"""Realistic and unrealistic rows of logits, and sampling options for them, for hypothesis."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from hypothesis import strategies as st

from tandem.benchmarks.sampling import flat, peaked
from tandem.protos.types import SamplingParams

Kind = Callable[[int, int], torch.Tensor]


def barred(count: int, seed: int) -> torch.Tensor:
    """Return a row in which all but a few tokens are impossible, [count]."""
    row = torch.full((count,), -math.inf)
    row[: 1 + seed % 9] = flat(1 + seed % 9, seed)[:count]
    return row


def rounded(count: int, seed: int) -> torch.Tensor:
    """Return a row with many equal logits, as a model that computes in bfloat16 makes it,
    [count].
    """
    return (peaked(count, seed) + 20.0).bfloat16().float()


def steps(count: int, seed: int) -> torch.Tensor:
    """Return a row with few different values, [count]."""
    return (1.5 * flat(count, seed)).round()


KINDS: tuple[Kind, ...] = (
    flat,
    peaked,
    barred,
    rounded,
    steps,
    lambda count, _: torch.zeros(count),
)

adjusted = st.builds(
    lambda kind, count, seed: kind(count, seed),
    st.sampled_from(KINDS),
    st.integers(1, 3000),
    st.integers(0, 2**32),
)
"""Rows [1 to 3000]."""

options = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1.0, 0.7, 1.5, 0.01, 1e-30, 1e20]),
    top_k=st.sampled_from([0, 0, 1, 2, 40, 1000, 5000]),
    top_p=st.sampled_from([1.0, 1.0, 0.99999, 0.99, 0.9, 0.5, 0.05, 1e-6]),
    min_p=st.sampled_from([0.0, 0.0, 1e-3, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
"""What decides what is drawn; not greedy."""
