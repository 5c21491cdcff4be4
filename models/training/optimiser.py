"""The optimiser with which all models of this project are trained: Muon for matrices, AdamW for
embeddings and norms.

Muon (Jordan et al. 2024) is a momentum method whose updates have singular values of about equal
size. PyTorch's own Muon computes in bfloat16, one matrix after the other. On a processor without
bfloat16 instructions, PyTorch's Muon took four fifths of the time of a training step. This
implementation computes in float32, and processes all matrices of the same shape in one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

NEWTON_SCHULZ_STEPS = 5
# coefficients of the Newton-Schulz iteration, as in the paper
NEWTON_SCHULZ_FACTORS = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95
EPSILON = 1e-7


class Optimiser:
    """Uses Muon for matrices and AdamW for embeddings and norms, with one learning-rate schedule
    for both.
    """

    def __init__(self, model: nn.Module, matrix_rate: float, other_rate: float) -> None:
        layers = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(layers, lr=matrix_rate, weight_decay=0.05), matrix_rate),
            (
                torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0),
                other_rate,
            ),
        ]

    def step(self, scale: float) -> None:
        """Update all weights with `scale` times the peak learning rate, then clear gradients."""
        for optimiser, rate in self._parts:
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of both optimisers, with which a later training can continue."""
        return [optimiser.state_dict() for optimiser, _ in self._parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Load a state that was returned by `state` of another Optimiser."""
        for (optimiser, _), part in zip(self._parts, state, strict=True):
            optimiser.load_state_dict(part)


class Muon(torch.optim.Optimizer):
    """The Muon optimiser, which updates only matrices. If a matrix has more rows than columns, its
    learning rate is multiplied by the square root of their ratio.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update all matrices with their gradients."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    shapes[matrix.shape].append(matrix)
            for (rows, columns), matrices in shapes.items():
                changes = orthogonal(torch.stack([self._momentum(each) for each in matrices]))
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for matrix, change in zip(matrices, changes, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(change, alpha=-rate)

    def _momentum(self, matrix: nn.Parameter) -> torch.Tensor:
        """Return a matrix's gradient, combined with its earlier gradients by Nesterov momentum."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if not state:
            state["momentum"] = torch.zeros_like(matrix)
        known: torch.Tensor = state["momentum"]
        known.lerp_(matrix.grad, 1 - MOMENTUM)
        return matrix.grad.lerp(known, MOMENTUM)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """Return matrices [n, rows, columns] with the same singular vectors as the given matrices, but
    with singular values between 0.5 and 1.5. Very small singular values may stay below 0.5.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.mT if tall else matrices
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=EPSILON)
    one, two, three = NEWTON_SCHULZ_FACTORS
    for _ in range(NEWTON_SCHULZ_STEPS):
        products = found @ found.mT
        found = one * found + (two * products + three * products @ products) @ found
    turned: torch.Tensor = found.mT if tall else found
    return turned
