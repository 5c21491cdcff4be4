"""Draw tokens with a kernel on a CUDA device. The draws of all sessions are copied to the device as
one table.

This module knows the layout of the kernel's table, but not what the draws are used for. Triton is
imported only when the kernel is first needed.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.sampling.noise import keys
from tandem.engine.sampling.uploads import upload

UNSURE, NAN = -1, -2  # result codes in place of tokens; the kernel uses the same codes
LARGEST = 2**31 - 1
ALMOST_ALL = np.nextafter(np.float32(1), np.float32(0))  # the largest float32 top_p below 1
ROW = np.dtype(  # same layout as in forward/cuda/kernels/drawing.py
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
    """Draw one token for each entry of `draws`. An entry has the dtype `drawing.DRAW`; it describes
    where a row of logits is and how to draw from it. Returns int64 [rows] on the device, without
    waiting for the device. The result of a row is a token, or `UNSURE` if rounding errors could
    change the token, or `NAN` if a logit is NaN.
    """
    from tandem.engine.forward.cuda.kernels import drawing as kernel  # Triton may be missing

    table = upload(device_table(draws).view(np.int32).reshape(len(draws), -1), device)
    # on other devices, Triton interprets the kernel
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        return kernel.draw(table, vocabulary)


def device_table(draws: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Convert draws to the table [rows] that the kernel reads."""
    table = np.zeros(len(draws), ROW)
    table["row"], table["temperature"] = draws["row"], draws["temperature"]
    table["key"] = keys(draws["seed"], draws["position"])
    table["top_k"] = np.minimum(draws["top_k"], LARGEST)
    top_p = draws["top_p"].astype(np.float32)
    table["top_p"] = np.where(draws["top_p"] < 1, np.minimum(top_p, ALMOST_ALL), 1)
    with np.errstate(divide="ignore"):
        # the field `inverse` is unused if the temperature is 0
        table["inverse"] = 1 / draws["temperature"]
        table["least_score"] = np.log(draws["min_p"])
    return table
