"""The optimiser with which all models of this project are trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tandem.models.training.muon import Muon


class Optimiser:
    """Uses Muon for the matrices, AdamW for embeddings and norms, and one schedule for both."""

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
        """Apply the gradients at `scale` of the peak learning rate, then clear them."""
        for optimiser, rate in self._parts:
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return the state of both optimisers, to go on with later."""
        return [optimiser.state_dict() for optimiser, _ in self._parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on with the state of another optimiser."""
        for (optimiser, _), part in zip(self._parts, state, strict=True):
            optimiser.load_state_dict(part)
