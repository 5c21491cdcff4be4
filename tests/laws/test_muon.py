"""The Muon optimiser for matrices: updates have singular values of equal size, and steps equal
those of PyTorch's implementation.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tandem.models.training.optimiser import Muon, orthogonal

SHAPES = [(8, 8), (24, 8), (8, 24)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_directions_become_equally_long_and_stay_what_they_are(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    left, before, right = torch.linalg.svd(matrices, full_matrices=False)
    found = left.mT @ orthogonal(matrices) @ right.mT
    lengths = found.diagonal(dim1=1, dim2=2)
    assert (before.amax(1) > 2 * before.amin(1)).all(), "they were not"
    assert ((lengths > 0.4) & (lengths < 1.6)).all()
    torch.testing.assert_close(found, torch.diag_embed(lengths), rtol=0, atol=1e-4)


def test_steps_are_those_of_pytorch_but_for_rounding() -> None:
    """PyTorch's implementation rounds to bfloat16."""
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(shape, generator=generator) for shape in SHAPES]
    ours, theirs = ([nn.Parameter(each.clone()) for each in starts] for _ in range(2))
    mine = Muon(ours, lr=0.02, weight_decay=0.05)
    known = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.05)
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        mine.step()
        known.step()
    for start, one, other in zip(starts, ours, theirs, strict=True):
        moved = (other - start).norm()
        assert (one - other).norm() < 0.03 * moved
