"""Choose the dtype that a model is loaded in."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from tandem.engine.forward.cpu.kernels import kernels
from tandem.protos.errors import Unusable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = "auto"  # stands for the checkpoint's own dtype


def default_dtype(saved: str, device: str) -> str:
    """Return the name of the dtype in which a model is loaded if no dtype is configured.

    On devices other than a CPU, the default is the dtype that the model was `saved` in. On a CPU,
    the default is float32, unless the model was saved in bfloat16 and the kernels use the CPU's
    instructions for bfloat16. If the kernels use no special CPU instructions for a dtype, such as
    float16, that dtype is not faster, because its numbers are converted for each multiplication.
    Besides, float16 overflows if a network was not trained in float16.
    """
    if not device.startswith("cpu"):
        return saved
    build = kernels()
    native = build is not None and build.bf16_pairs
    return saved if saved == "bfloat16" and native else "float32"


def dtype_of(name: str | None, config: PreTrainedConfig, device: str) -> torch.dtype:
    """Return the dtype in which a model is loaded: the dtype called `name`, the checkpoint's own
    dtype if `name` is `auto`, or the default dtype of the device if `name` is None. Raises Unusable
    for an unknown name.
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
