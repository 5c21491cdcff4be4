"""The embedded pair as GGUF files, and random blocks of weights in each quantised type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    quants,
)

from tandem.engine.formats.blocks import READERS
from tandem.engine.forward.grouped_weight import GroupedWeight, StoredGroups
from tandem.models.gguf import convert, copy_metadata, write

MakeGGUF = Callable[[Path, str], Path]
Stored = tuple[str, torch.Tensor]  # a type, and blocks of this type
HALVES = {  # where float16 numbers lie in a block
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def maker(folder: Path) -> MakeGGUF:
    """Return a function that makes a GGUF file of a model directory, once."""

    def make(model: Path, kind: str) -> Path:
        file = folder / f"{model.name}-{kind}.gguf"
        if not file.exists():
            convert(model, file, kind)
        return file

    return make


def some_blocks(kind: str, outputs: int, inputs: int, size: float = 0.01) -> torch.Tensor:
    """Return a weight of a type with random codes and scales of about `size`, [out, blocks,
    bytes].
    """
    source = np.random.default_rng(0)
    count, length = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = source.integers(0, 256, (outputs, inputs // count, length), dtype=np.uint8)
    for place in HALVES[kind]:
        halves = (source.standard_normal((*blocks.shape[:2], 1)) * size).astype(np.float16)
        blocks[..., place : place + 2] = halves.view(np.uint8)
    return torch.from_numpy(blocks)


def as_weight(kind: str, blocks: torch.Tensor, dtype: torch.dtype) -> GroupedWeight:
    """Return blocks as a weight of a network."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
    return GroupedWeight([StoredGroups((blocks,), blocks.shape[1] * size, READERS[kind])], dtype)


def dequantised(kind: str, blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks dequantised by the `gguf` package, [out, in] float32."""
    rows = blocks.numpy().reshape(len(blocks), -1)
    return torch.from_numpy(quants.dequantize(rows, GGMLQuantizationType[kind]).copy())


def rewritten(file: Path, made: Path, tensors: Mapping[str, torch.Tensor | Stored]) -> Path:
    """Return a file in which some tensors replace its own or are added."""
    reader, writer = GGUFReader(file), GGUFWriter(made, "llama")
    copy_metadata(reader, writer)
    own = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    for name, tensor in (own | dict(tensors)).items():
        if isinstance(tensor, torch.Tensor):
            writer.add_tensor(name, tensor.numpy())
        else:
            kind, blocks = tensor
            rows = blocks.numpy().reshape(len(blocks), -1)
            writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType[kind])
    write(writer)
    return made


def with_random_blocks(file: Path, made: Path, others: Mapping[str, str], kind: str) -> Path:
    """Return a float32 file with its matrices replaced by random blocks of a type, some by name of
    another type.
    """
    found: dict[str, Stored] = {}
    for tensor in GGUFReader(file).tensors:
        if len(tensor.shape) == 2:
            own = next((other for name, other in others.items() if name in tensor.name), kind)
            shape = tensor.data.shape
            usual = float(dequantised(own, some_blocks(own, *shape)).std())
            found[tensor.name] = own, some_blocks(own, *shape, size=0.01 * 0.04 / usual)
    return rewritten(file, made, found)
