"""Read the linear layers of a checkpoint in their stored form, through the interface that
transformers has for third-party quantisers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from tandem.engine.formats.linear_formats import SCALES, Format
from tandem.protos.errors import Unusable

METHOD = "tandem_linears"


@register_quantization_config(METHOD)
class StoredLinears(QuantizationConfigMixin):
    """The quantisation setting of LinearReader: the format of the linear layers, the shapes of each
    layer's tensors by the layer's name, and whether the weights stay quantised in groups
    (`grouped`).
    """

    def __init__(
        self,
        form: Format,
        shapes: Mapping[str, Mapping[str, list[int]]],
        grouped: bool,
        quant_method: Any = METHOD,
    ) -> None:
        self.quant_method = quant_method
        self.form = form
        self.shapes = shapes
        self.grouped = grouped


@register_quantizer(METHOD)
class LinearReader(HfQuantizer):
    """Replaces linear layers by placeholders for their stored tensors before loading, and puts the
    layers back with their loaded weights afterwards.
    """

    quantization_config: StoredLinears
    requires_calibration = True
    is_trainable = False

    def is_serializable(self) -> bool:
        """Return False, because this quantiser only reads checkpoints and cannot save them."""
        return False

    def get_new_dtype(self, *_: Any) -> None:
        """Return None, so that transformers converts no tensor: all tensors keep their stored
        dtypes.
        """

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        self._layers = dict[str, nn.Linear]()
        layers = dict(model.named_modules())
        for name, shapes in self.quantization_config.shapes.items():
            layer = layers.get(name)
            if type(layer) is not nn.Linear:
                raise Unusable(f"has quantised weights of {name}, which is not a linear layer")
            placeholder = nn.Module()
            placeholder.bias = layer.bias
            for tensor, shape in shapes.items():
                placeholder.register_buffer(tensor, torch.empty(shape, device="meta"))
            model.set_submodule(name, placeholder)
            self._layers[name] = layer

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        given = self.quantization_config
        for name, layer in self._layers.items():
            placeholder: Any = model.get_submodule(name)
            try:
                stored = given.form(dict(placeholder.named_buffers()), layer.in_features)
                weight = stored.weight(layer.weight.dtype, given.grouped)
                if weight.shape != layer.weight.shape:
                    raise Unusable(f"{list(weight.shape)}, not {list(layer.weight.shape)}")
            except (Unusable, LookupError, RuntimeError) as error:
                problem = f"there is no {error.args[0]}" if isinstance(error, KeyError) else error
                raise Unusable(f"has weights of {name} that cannot be read: {problem}") from error
            layer.bias = placeholder.bias
            layer.weight = nn.Parameter(weight, requires_grad=False)
            model.set_submodule(name, layer)
        # the network keeps this quantiser, so the quantiser must not keep the layers in memory
        self._layers.clear()


def stored_linears(form: Format, shapes: Mapping[str, list[int]], grouped: bool) -> dict[str, Any]:
    """Return the quantisation setting with which to load a checkpoint. `shapes` holds the shapes of
    all tensors of the checkpoint, by name. Every layer that has scales is treated as a linear
    layer.
    """
    layers = defaultdict[str, dict[str, list[int]]](dict)
    for name, shape in shapes.items():
        layer, _, tensor = name.rpartition(".")
        if tensor != "bias":
            layers[layer][tensor] = shape
    chosen = {name: tensors for name, tensors in layers.items() if not SCALES.isdisjoint(tensors)}
    return {"quant_method": METHOD, "form": form, "shapes": chosen, "grouped": grouped}
