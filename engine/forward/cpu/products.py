"""Layers that multiply rows with a weight of their own, without an inner linear layer. Layers that
choose experts are an example. Such a layer keeps its code, but its product is computed by the
compiled kernels. Trials find out which layers of a network are of this kind.
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
    """A scope within which `products` replace calls of `functional.linear`. Every weight is taken
    to equal the first weight of the same shape and dtype.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[Key, Product] = {}
        self._weights: dict[Key, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, or a known product instead of `linear`. PyTorch calls this method instead
        of the function.
        """
        if func is not functional.linear or kwargs:
            return func(*args, **(kwargs or {}))
        rows, weight, bias = (*args, None)[:3]
        key = weight.shape, weight.dtype
        if key not in self.products:
            self._weights[key] = weight, bias
            self.products[key] = partial(functional.linear, weight=weight, bias=bias)
        return self.products[key](rows)

    def by_panels(self) -> None:
        """Use the kernels for all products with known weights from now on."""
        self.products = {key: PanelLinear(*known) for key, known in self._weights.items()}
        self._weights.clear()


@torch.inference_mode()
def multiply_by_panels(layer: nn.Module) -> bool:
    """Make a layer of a network use the kernels to multiply rows with its weight. Return whether
    the layer was changed. Only a layer that has no inner layers and always multiplies by the same
    weight is changed.
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
