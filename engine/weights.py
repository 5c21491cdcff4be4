"""Measure the memory that a model's weights take in the form in which they are used: converted,
packed into panels, or quantised.

Keys and values are not counted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.model.load import HFModel


def weights_bytes(model: HFModel) -> int:
    """Return the bytes of all weights of a model; weights that layers share count once."""
    return network_bytes(model.network)


def network_bytes(network: nn.Module) -> int:
    """Return the bytes of all tensors that a network holds. A shared tensor counts once."""
    storages = (tensor.untyped_storage() for tensor in _tensors(network))
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _tensors(network: nn.Module) -> Iterator[torch.Tensor]:
    """Yield all tensors that a network holds, including tensors of layers that have replaced
    original layers.
    """
    seen, left = set[int](), list[Any]([network])
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, GroupedWeight):
            left.extend(each.parts)
        elif isinstance(each, torch.Tensor):
            yield each
        else:
            left.extend(_held(each))


def _held(holder: Any) -> Iterable[Any]:
    """Return the objects inside `holder` that may hold weights. `holder` may be a container, a
    layer, a function that replaces a method, or another object of this project.
    """
    if isinstance(holder, dict):
        return list(holder.values())
    if isinstance(holder, list | tuple):
        return holder
    if isinstance(holder, FunctionType):
        return gc.get_referents(*(holder.__closure__ or ()))  # a closure cell may be empty
    if isinstance(holder, partial):
        return [*holder.args, *holder.keywords.values()]
    if isinstance(holder, nn.Module) or type(holder).__module__.startswith("tandem."):
        return list(getattr(holder, "__dict__", {}).values())
    return ()
