"""Checkpoints whose weights are in 8 or 4 bits, in formats that transformers turns back into
numbers as it loads them: what is served is a plain network.

Raises Unusable, with words that follow the name of a class, for all others and for files that do
not hold what makes numbers of their weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import FineGrainedFP8Config, PreTrainedConfig, PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from tandem.protos.errors import Unusable

SETTING = "quantization_config"
OURS = "tandem_fp8"
LOADERS = {"fp8": OURS, "mxfp8": OURS, "mxfp4": "mxfp4"}  # by `quant_method` of a configuration
SCALES = (".weight_scale_inv", ".scale", ".qscale_weight")  # instead of `.weight`
register_quantization_config(OURS)(FineGrainedFP8Config)


@register_quantizer(OURS)
class Dequantiser(FineGrainedFP8HfQuantizer):
    """Reads what its parent reads, which asks for another package though it needs it only to
    compute in 8 bits.
    """

    def validate_environment(self, *given: Any, **named: Any) -> None:
        """Nothing is asked for."""


def dequantise(config: PreTrainedConfig, folder: Path) -> str | None:
    """Have a model's weights made numbers as they are loaded; how they were quantised, None if they
    were not.
    """
    parts = config, config.get_text_config()
    given = next(filter(None, (getattr(part, SETTING, None) for part in parts)), None)
    if not given:
        return None
    method = str(given.get("quant_method") if isinstance(given, dict) else given)
    if method not in LOADERS:
        raise Unusable(
            f"has weights quantised by {method}: get the checkpoint whose weights are not"
        )
    try:
        lacking = next(_lacking(folder), None)
    except (SafetensorError, OSError) as error:
        raise Unusable(f"has weights that cannot be read ({error})") from error
    if lacking:
        raise Unusable(f"has weights quantised by {method}, but no scales that fit for {lacking}")
    setattr(config, SETTING, given | {"quant_method": LOADERS[method], "dequantize": True})
    return method


def unify_dtype(network: PreTrainedModel, dtype: torch.dtype) -> None:
    """Give all weights one dtype: those that were not quantised come as they are in the files."""
    kept = network._get_dtype_plan(dtype)  # what a model wants in float32
    for name, weight in network.named_parameters():
        if weight.dtype != dtype and not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)


def _lacking(folder: Path) -> Iterator[str]:
    """Weights in 8 bits without scales that divide them into blocks: what would be loaded for
    them would not be their numbers.
    """
    with ExitStack() as opened:
        files = [
            opened.enter_context(safe_open(file, framework="pt"))
            for file in sorted(folder.glob("*.safetensors"))
        ]
        found = {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118
        for name, weight in found.items():
            if not (name.endswith(".weight") and weight.get_dtype().startswith("F8_E4M3")):
                continue
            stem = name.removesuffix(".weight")
            scale = next((found[stem + end] for end in SCALES if stem + end in found), None)
            if scale is None or not _divides(scale.get_shape(), weight.get_shape()):
                yield name


def _divides(scale: list[int], weight: list[int]) -> bool:
    """Whether a grid of scales divides a weight into equal blocks; a single one always does."""
    grid = scale if len(scale) == len(weight) else [1] * len(weight)
    return all(size % count == 0 for size, count in zip(weight, grid, strict=True))
