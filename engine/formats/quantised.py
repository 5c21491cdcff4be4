"""Choose how a checkpoint with weights of 8 or 4 bits is loaded: this engine keeps linear layers in
their stored form, and transformers dequantises other formats while loading them. In both cases the
network has the same class as without quantisation.

The module raises Unusable for unsupported quantisation methods, and for files that lack the scales
of their weights. The message of an Unusable error continues a sentence that begins with the name of
a class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import FineGrainedFP8Config, PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tandem.engine.formats.linear_formats import format_of
from tandem.engine.formats.linear_reader import stored_linears
from tandem.protos.errors import Unusable

SETTING = "quantization_config"
OURS = "tandem_fp8"
# the name of the quantiser for each `quant_method`
LOADERS = {"fp8": OURS, "mxfp8": OURS, "mxfp4": "mxfp4"}
# endings of the names of tensors with scales
SCALES = (".weight_scale_inv", ".scale", ".qscale_weight")
EXPERTS = ".experts."  # substring of the names of expert weights, which are not linear layers
register_quantization_config(OURS)(FineGrainedFP8Config)


@register_quantizer(OURS)
class Dequantiser(FineGrainedFP8HfQuantizer):
    """A reader of FP8 checkpoints that requires no additional package. The parent class requires a
    package that is needed only for computing in 8 bits.
    """

    def validate_environment(self, *given: Any, **named: Any) -> None:
        """Accept any environment, because reading requires no additional package."""


def dequantise(config: PreTrainedConfig, folder: Path, grouped: bool) -> str | None:
    """Set in a model's `config` how its quantised weights are loaded. Returns the `quant_method` of
    the weights; None if they are not quantised. If `grouped`, linear layers whose format this
    engine reads stay quantised, in groups. All other weights are dequantised, and so are all
    weights of an FP8 checkpoint with experts. Raises Unusable for an unsupported method, and for
    files that are unreadable or lack the scales of a weight.
    """
    parts = config, config.get_text_config()
    given = next(filter(None, (getattr(part, SETTING, None) for part in parts)), None)
    if not given:
        return None
    method = str(given.get("quant_method") if isinstance(given, dict) else given)
    form = format_of(given) if isinstance(given, dict) else None
    if method not in LOADERS and form is None:
        raise Unusable(
            f"has weights quantised by {method}: get the checkpoint whose weights are not quantised"
        )
    try:
        with ExitStack() as opened:
            stored = _stored(folder, opened)
            shapes = {name: tensor.get_shape() for name, tensor in stored.items()}
            lacking = next(_lacking(stored), None) if method in LOADERS else None
    except (SafetensorError, OSError) as error:
        raise Unusable(f"has weights that cannot be read ({error})") from error
    if lacking:
        raise Unusable(f"has weights quantised by {method}, but no matching scales for {lacking}")
    if form and not (method in LOADERS and any(EXPERTS in name for name in shapes)):
        setattr(config, SETTING, stored_linears(form, shapes, grouped))
    else:
        setattr(config, SETTING, given | {"quant_method": LOADERS[method], "dequantize": True})
    return method


def unify_dtype(network: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert all weights to one dtype, except those that the network requires in float32. Weights
    that were not quantised are loaded in the dtypes that they have in the files.
    """
    kept = network._get_dtype_plan(dtype)  # the weights that a model requires in float32
    for name, weight in network.named_parameters():
        if weight.dtype != dtype and not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)


def _stored(folder: Path, opened: ExitStack) -> Mapping[str, Any]:
    """Return the tensors of a checkpoint by name, as slices of its files, without reading them."""
    files = [
        opened.enter_context(safe_open(file, framework="pt"))
        for file in sorted(folder.glob("*.safetensors"))
    ]
    return {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118


def _lacking(stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of FP8 weights that have no scales, or whose scales do not divide them into
    equal blocks. Without matching scales, weights would be loaded with wrong values.
    """
    for name, weight in stored.items():
        if not (name.endswith(".weight") and weight.get_dtype().startswith("F8_E4M3")):
            continue
        stem = name.removesuffix(".weight")
        scale = next((stored[stem + end] for end in SCALES if stem + end in stored), None)
        if scale is None or not _divides(scale.get_shape(), weight.get_shape()):
            yield name


def _divides(scale: list[int], weight: list[int]) -> bool:
    """Tell whether a grid of scales divides a weight into equal blocks. A single scale is always
    valid, because its block is the whole weight.
    """
    grid = scale if len(scale) == len(weight) else [1] * len(weight)
    return all(size % count == 0 for size, count in zip(weight, grid, strict=True))
