"""Compute a mixture of experts in three calls of the compiled kernels: one for the inner layers of
all experts, one for the gate, and one for the outer layers. A layer of a network is recognised as a
mixture of experts if its outputs equal those of a reference implementation.

The experts are gated feed-forward layers. The network chooses some of the experts for each row, and
a weight for each chosen expert. The result of a row is the weighted sum of its experts' outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tandem.engine.forward.cpu.kernels import required_kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.equivalence import equivalent, trial_rows
from tandem.engine.forward.gated import ACTIVATIONS, activation_of

Gate = Callable[[torch.Tensor], torch.Tensor]  # [rows, 2 * size] -> [rows, size]
INNER, OUTER, BIAS = "gate_up_proj", "down_proj", "_bias"
TRIED = 3  # number of experts that a trial uses; each trial row is fed to two of them


class PanelExperts(nn.Module):
    """A layer of experts, each of which computes outer(gate(inner(row))). `inner` contains the
    inner linear layers of all experts, and `outer` contains their outer linear layers.
    """

    def __init__(self, inner: PanelLinear, outer: PanelLinear, gate: Gate, count: int) -> None:
        super().__init__()
        self.inner = inner
        self.outer = outer
        self.outer.rounded = False  # outputs of experts are rounded after they are added
        self._gate = gate
        self._count = count

    def forward(
        self,
        rows: torch.Tensor,  # [rows, size]
        chosen: torch.Tensor,  # [rows, top]: the experts of each row
        weights: torch.Tensor,  # [rows, top]
    ) -> torch.Tensor:
        """Return for each row the weighted sum of its chosen experts' outputs, [rows, size]."""
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.bincount(experts, minlength=self._count).cumsum(0)
        wide = self.inner(rows[order // chosen.shape[1]], ends)
        sorted_outputs = self.outer(self._gate(wide), ends)
        outputs = torch.empty_like(sorted_outputs)
        outputs[order] = sorted_outputs
        weighted = outputs.view(*chosen.shape, self.outer.out_features) * weights[..., None]
        return weighted.sum(1).to(rows.dtype)


@torch.inference_mode()
def panel_experts(layer: nn.Module, kind: type[PanelLinear]) -> PanelExperts | None:
    """Return a module that can replace a mixture-of-experts layer of a network, or None if the
    layer computes something else. The linear layers of the module have the class `kind`. If the
    layer can be replaced, its own weights are freed.
    """
    weights = _weights(layer)
    if weights is None:
        return None
    inner = weights[0]
    biases = getattr(layer, INNER + BIAS, None), getattr(layer, OUTER + BIAS, None)
    for gate, own_gate in _gates(layer):
        reference = partial(_spelled_out, weights, biases, gate)
        if equivalent(layer, reference, inner, *trial_choices(inner)):
            one, other = (kind(*given) for given in zip(weights, biases, strict=True))
            for name in (INNER, OUTER):  # the gate may keep the layer alive, so free its weights
                setattr(layer, name, None)
            return PanelExperts(one, other, own_gate, len(inner))
    return None


def _weights(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the inner and outer weights of a mixture of experts, both as [experts, out, in].
    Weights that a model stores as [experts, in, out] are transposed. Return None if the layer has
    no weights of these shapes.
    """
    inner, outer = getattr(layer, INNER, None), getattr(layer, OUTER, None)
    if not (isinstance(inner, torch.Tensor) and isinstance(outer, torch.Tensor)):
        return None
    for one, other in ((inner, outer), (inner.mT, outer.mT)):
        if one.dim() == 3 and other.shape == (len(one), one.shape[2], one.shape[1] // 2):
            return one, other
    return None


def _gates(layer: Any) -> list[tuple[Gate, Gate]]:
    """Return the gate functions that a layer of experts may use. Each entry is a pair: a reference
    implementation of the gate, and an implementation that calls a kernel. If there is no kernel for
    the gate, both are the same function.
    """
    gates: list[tuple[Gate, Gate]] = []
    if activation := activation_of(getattr(layer, "act_fn", None)):
        kernel = partial(required_kernels().gate, activation=activation)
        gates.append((partial(_halves, ACTIVATIONS[activation]), kernel))
    if own := getattr(layer, "_apply_gate", None):
        gates.append((own, own))
    return gates


def _halves(activation: Gate, wide: torch.Tensor) -> torch.Tensor:
    first, second = wide.chunk(2, -1)
    return activation(first) * second


def trial_choices(inner: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose two experts for each trial row, and return the experts and their weights, both as
    [rows, 2]. The two weights of a row do not add up to 1.
    """
    rows = torch.arange(len(trial_rows(inner)))
    chosen = torch.stack([rows, rows + 1], 1) % min(TRIED, len(inner))
    return chosen, torch.stack([0.7 - 0.02 * rows, 0.2 + 0.01 * rows], 1).to(inner.dtype)


def _spelled_out(
    weights: tuple[torch.Tensor, torch.Tensor],
    biases: tuple[torch.Tensor | None, torch.Tensor | None],
    gate: Gate,
    rows: torch.Tensor,
    chosen: torch.Tensor,
    shares: torch.Tensor,
) -> torch.Tensor:
    """Reference implementation of a mixture of experts, which computes one expert after the other
    with PyTorch. Returns the outputs, [rows, size].
    """

    def linear(layer: int, expert: int, given: torch.Tensor) -> torch.Tensor:
        bias = biases[layer]
        weight = weights[layer][expert]
        return functional.linear(given, weight, None if bias is None else bias[expert])

    output = torch.zeros_like(rows, dtype=torch.float32)
    for expert in chosen.unique().tolist():
        row, choice = (chosen == expert).nonzero(as_tuple=True)
        made = linear(1, expert, gate(linear(0, expert, rows[row])))
        output.index_add_(0, row, made.float() * shares[row, choice, None].float())
    return output.to(rows.dtype)
