"""The dtype that a model is loaded in."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from tandem.engine.forward.cpu.kernels import kernels
from tandem.protos.errors import Unusable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"  # the checkpoint's own dtype


def default_dtype(saved: str, device: str) -> str:
    """What a model is loaded in unless a dtype is set: what it was `saved` in. On a CPU only
    bfloat16 is kept, where there are kernels with instructions for it. What lacks them, float16 on
    every CPU, is converted in each product and gains no speed; and float16 overflows where a
    network was not trained in it.
    """
    if not device.startswith("cpu"):
        return saved
    build = kernels()
    native = build is not None and build.pairs
    return saved if saved == "bfloat16" and native else "float32"


def dtype_of(name: str | None, config: PreTrainedConfig, device: str) -> torch.dtype:
    """Return the dtype that a model is loaded in: the one of this name, or the default of its
    configuration and the device. Raises Unusable.
    """
    own = config.dtype or config.get_text_config().dtype or torch.float32
    saved = str(own).removeprefix("torch.")
    if name is None:
        name = default_dtype(saved, device)
    elif name == AUTO:
        name = saved
    if name not in DTYPES:
        raise Unusable(f"dtype {name!r} is not one of {', '.join([AUTO, *DTYPES])}")
    return DTYPES[name]
