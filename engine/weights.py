"""How much memory a model's weights take, as they lie there: converted, in panels, or rounded.

Keys and values are not part of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from tandem.engine.gguf.model import GGUFModel
from tandem.engine.model.load import HFModel
from tandem.engine.model_runner import LoadedModel


def weights_bytes(model: LoadedModel) -> int:
    """Bytes of all weights; those that layers share count once."""
    if isinstance(model, GGUFModel):
        return int(model.weights_file.query("size"))
    assert isinstance(model, HFModel), "there are two kinds"
    storages = (tensor.untyped_storage() for tensor in _tensors(model.network))
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _tensors(network: nn.Module) -> Iterator[torch.Tensor]:
    """All that a network holds, also in the layers that took the place of its own."""
    seen, left = set[int](), [network]
    while left:
        each: Any = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            yield each
        else:
            left.extend(_held(each))


def _held(holder: Any) -> Iterable[Any]:
    """What may hold weights: of layers, of our own objects, and of functions put in their place."""
    if isinstance(holder, dict):
        return list(holder.values())
    if isinstance(holder, list | tuple):
        return holder
    if isinstance(holder, FunctionType):
        return gc.get_referents(*(holder.__closure__ or ()))  # a cell may be empty
    if isinstance(holder, partial):
        return [*holder.args, *holder.keywords.values()]
    if isinstance(holder, nn.Module) or type(holder).__module__.startswith("tandem."):
        return list(getattr(holder, "__dict__", {}).values())
    return ()
