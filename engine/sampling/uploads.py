"""Copy arrays to a device without waiting for the copy or for other work on the device."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch


def upload(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device, and return the tensor there."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
