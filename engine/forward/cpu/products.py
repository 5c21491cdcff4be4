"""Use the compiled kernels in layers that call `functional.linear` with a weight of their own. The
router of a mixture of experts is an example of such a layer. The kernels replace only the layer's
matrix product, and the rest of the layer's code still runs. Trials with random rows determine which
layers of a network can use the kernels in this way.
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
Key = tuple[torch.Size, torch.dtype]  # shape and dtype of a weight


class KnownProducts(TorchFunctionMode):
    """Context manager in which `products` replace calls of `functional.linear`. Calls whose weights
    have the same shape and dtype all use the weight of the first such call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products: dict[Key, Product] = {}
        self._weights: dict[Key, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a PyTorch function or, for `functional.linear`, the product that replaces it.
        PyTorch calls this method in place of every function inside the context.
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
        """Switch to the compiled kernels for all weights that have been seen so far."""
        self.products = {key: PanelLinear(*known) for key, known in self._weights.items()}
        self._weights.clear()


@torch.inference_mode()
def multiply_by_panels(layer: nn.Module) -> bool:
    """Make a layer of a network use the compiled kernels to multiply rows by its weight. The layer
    is changed only if it has no inner layers and always multiplies by the same weight. Return
    whether the layer was changed.
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
