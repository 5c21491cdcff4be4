"""Layers that multiply rows with a weight of their own instead of having a linear layer for it, for
example those that choose experts. Such a layer keeps its code, but multiplies by the compiled
kernels. Trials find out which layers of a network are of this kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.forward.equivalence import equivalent

Product = Callable[[torch.Tensor], torch.Tensor]
Key = tuple[torch.Size, torch.dtype]  # the shape of a weight, and the dtype that it is used in


class KnownProducts(TorchFunctionMode):
    """A scope within which `products` multiply rows with weights. The first weight of a shape and
    dtype is taken for every later weight of this shape and dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[Key, Product] = {}
        self._weights: dict[Key, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or a product for `linear`: torch calls this instead of the function."""
        if func is not functional.linear or kwargs:
            return func(*args, **(kwargs or {}))
        rows, weight, bias = (*args, None)[:3]
        key = weight.shape, weight.dtype
        if key not in self.products:
            self._weights[key] = weight, bias
            self.products[key] = partial(functional.linear, weight=weight, bias=bias)
        return self.products[key](rows)

    def by_panels(self) -> None:
        """Use the kernels from now on to multiply with all weights that are known."""
        self.products = {key: PanelLinear(*known) for key, known in self._weights.items()}
        self._weights.clear()


@torch.inference_mode()
def multiply_by_panels(layer: nn.Module) -> bool:
    """Make a layer of a network multiply rows with its weight by the kernels. Return whether the
    layer was changed: only a layer without inner layers that always multiplies by the same weight
    is.
    """
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, nn.Parameter) or weight.dim() != 2 or list(layer.children()):
        return False
    plain, known = layer.forward, KnownProducts()

    def forward(*given: Any, **named: Any) -> Any:
        with known:
            return plain(*given, **named)

    def after_another(rows: torch.Tensor) -> Any:
        forward(rows[:1])
        return forward(rows)

    if not equivalent(layer, after_another, weight) or not known.products:
        return False
    known.by_panels()
    layer.forward = forward
    return True
