"""Checkpoints whose weights are in 8 or 4 bits, which are read as they are stored, or turned back
into numbers by transformers as it loads them: what is served is a plain network.

Raises Unusable, with words that follow the name of a class, for all others and for files that do
not hold what makes numbers of their weights.
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

from tandem.engine.model.linear_formats import format_of
from tandem.engine.model.linear_reader import stored_linears
from tandem.protos.errors import Unusable

SETTING = "quantization_config"
OURS = "tandem_fp8"
LOADERS = {"fp8": OURS, "mxfp8": OURS, "mxfp4": "mxfp4"}  # by `quant_method` of a configuration
SCALES = (".weight_scale_inv", ".scale", ".qscale_weight")  # instead of `.weight`
EXPERTS = ".experts."  # whose weights are no linear layers
register_quantization_config(OURS)(FineGrainedFP8Config)


@register_quantizer(OURS)
class Dequantiser(FineGrainedFP8HfQuantizer):
    """Reads what its parent reads, which asks for another package though it needs it only to
    compute in 8 bits.
    """

    def validate_environment(self, *given: Any, **named: Any) -> None:
        """Nothing is asked for."""


def dequantise(config: PreTrainedConfig, folder: Path, grouped: bool) -> str | None:
    """Have a model's weights read as they are loaded, and stay `grouped` or be made numbers; how
    they were quantised, None if they were not.
    """
    parts = config, config.get_text_config()
    given = next(filter(None, (getattr(part, SETTING, None) for part in parts)), None)
    if not given:
        return None
    method = str(given.get("quant_method") if isinstance(given, dict) else given)
    form = format_of(given) if isinstance(given, dict) else None
    if method not in LOADERS and form is None:
        raise Unusable(
            f"has weights quantised by {method}: get the checkpoint whose weights are not"
        )
    try:
        with ExitStack() as opened:
            stored = _stored(folder, opened)
            shapes = {name: tensor.get_shape() for name, tensor in stored.items()}
            lacking = next(_lacking(stored), None) if method in LOADERS else None
    except (SafetensorError, OSError) as error:
        raise Unusable(f"has weights that cannot be read ({error})") from error
    if lacking:
        raise Unusable(f"has weights quantised by {method}, but no scales that fit for {lacking}")
    if form and not (method in LOADERS and any(EXPERTS in name for name in shapes)):
        setattr(config, SETTING, stored_linears(form, shapes, grouped))
    else:
        setattr(config, SETTING, given | {"quant_method": LOADERS[method], "dequantize": True})
    return method


def unify_dtype(network: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give all weights one dtype: those that were not quantised come as they are in the files."""
    kept = network._get_dtype_plan(dtype)  # what a model wants in float32
    for name, weight in network.named_parameters():
        if weight.dtype != dtype and not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)


def _stored(folder: Path, opened: ExitStack) -> Mapping[str, Any]:
    """Slices of a checkpoint's tensors, by their names."""
    files = [
        opened.enter_context(safe_open(file, framework="pt"))
        for file in sorted(folder.glob("*.safetensors"))
    ]
    return {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118


def _lacking(stored: Mapping[str, Any]) -> Iterator[str]:
    """Weights in 8 bits without scales that divide them into blocks: what would be loaded for
    them would not be their numbers.
    """
    for name, weight in stored.items():
        if not (name.endswith(".weight") and weight.get_dtype().startswith("F8_E4M3")):
            continue
        stem = name.removesuffix(".weight")
        scale = next((stored[stem + end] for end in SCALES if stem + end in stored), None)
        if scale is None or not _divides(scale.get_shape(), weight.get_shape()):
            yield name


def _divides(scale: list[int], weight: list[int]) -> bool:
    """Whether a grid of scales divides a weight into equal blocks; a single one always does."""
    grid = scale if len(scale) == len(weight) else [1] * len(weight)
    return all(size % count == 0 for size, count in zip(weight, grid, strict=True))
