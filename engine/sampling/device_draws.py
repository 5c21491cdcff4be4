"""Draw tokens by a kernel on a CUDA device. One table of draws for all sessions is copied to the
device.

This module knows the kernel's table, but not the purpose of a draw. Triton is imported together
with the kernel, when the first draw needs the kernel.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.sampling.noise import keys
from tandem.engine.sampling.uploads import upload

UNSURE, NAN = -1, -2  # codes instead of tokens; the kernel uses the same numbers
LARGEST = 2**31 - 1
ALMOST_ALL = np.nextafter(np.float32(1), np.float32(0))  # the largest top_p below 1
ROW = np.dtype(  # the layout is that of forward/cuda/kernels/drawing.py
    [
        ("row", "u8"),
        ("key", "i4", (2,)),
        ("temperature", "f4"),
        ("inverse", "f4"),
        ("top_k", "i4"),
        ("top_p", "f4"),
        ("least_score", "f4"),
        ("unused", "f4"),
    ]
)


def draw_on_device(
    draws: npt.NDArray[np.void], vocabulary: int, device: torch.device
) -> torch.Tensor:
    """Draw a token from each row of logits that an entry of `draws`, with the dtype `drawing.DRAW`,
    describes. Returns int64 [rows] on the device, without waiting for the device. The result of a
    row is a token, or `UNSURE` if rounding could decide the draw, or `NAN` if a logit is NaN.
    """
    from tandem.engine.forward.cuda.kernels import drawing as kernel  # Triton may be missing

    table = upload(device_table(draws).view(np.int32).reshape(len(draws), -1), device)
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # else interpreted
        return kernel.draw(table, vocabulary)


def device_table(draws: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Convert draws to the table that the kernel reads, [rows]."""
    table = np.zeros(len(draws), ROW)
    table["row"], table["temperature"] = draws["row"], draws["temperature"]
    table["key"] = keys(draws["seed"], draws["position"])
    table["top_k"] = np.minimum(draws["top_k"], LARGEST)
    top_p = draws["top_p"].astype(np.float32)
    table["top_p"] = np.where(draws["top_p"] < 1, np.minimum(top_p, ALMOST_ALL), 1)
    with np.errstate(divide="ignore"):
        # the field is unused where the temperature is 0
        table["inverse"] = 1 / draws["temperature"]
        table["least_score"] = np.log(draws["min_p"])
    return table
