"""The attention hook: what a Hugging Face model calls instead of its own attention.

Stores the step's keys and values in the slabs and attends tile by tile on views of them. The step
travels through a context variable because not every model passes keyword arguments on to its
attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from engine.kv import LayerGeometry, SlabCache
from engine.plan import StepPlan
from protos.errors import Unusable

NAME = "tandem"
IGNORED = {
    "dropout",
    "is_causal",
    "position_ids",
    "use_cache",
    "output_attentions",
    "cache_position",
}


@dataclass(slots=True)
class Step:
    """A forward pass through the slabs."""

    plan: StepPlan
    cache: SlabCache


@dataclass(slots=True)
class Probe:
    """A forward pass that only looks: what each layer would store."""

    layers: dict[int, LayerGeometry] = field(default_factory=dict)


_current: ContextVar[Step | Probe] = ContextVar("step")


@contextmanager
def stepping(step: Step | Probe) -> Iterator[None]:
    """Every attention call within the scope belongs to this step."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, rows, size]
    value: torch.Tensor,  # [1, kv heads, rows, value size]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the current step; [1, rows, heads, value size]. Refuses options that would
    change the result.
    """
    for name, option in options.items():
        if name not in IGNORED and option is not None:
            raise Unusable(f"the model's attention asks for {name!r}, which is not supported")
    step = _current.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, rows = query.shape[1], query.shape[2]
    output = query.new_zeros(rows, heads, value.shape[3])
    if isinstance(step, Probe):
        step.layers[layer] = LayerGeometry(key.shape[1], key.shape[3], value.shape[3])
        return output[None], None
    plan = step.plan
    keys, values = step.cache.keys[layer], step.cache.values[layer]
    keys[plan.write_slots, :, plan.write_places] = key[0, :, : plan.fed].transpose(0, 1)
    values[plan.write_slots, :, plan.write_places] = value[0, :, : plan.fed].transpose(0, 1)
    kv_heads = key.shape[1]
    for tile in plan.tiles:
        tile_query = query[:, :, tile.rows]
        if tile.pad:
            tile_query = torch.cat(
                [tile_query, tile_query[:, :, :1].expand(-1, -1, tile.pad, -1)], 2
            )
        attended = F.scaled_dot_product_attention(
            tile_query.reshape(
                1, kv_heads, -1, query.shape[3]
            ),  # query groups as rows: no copy of the keys
            keys[tile.slot : tile.slot + 1, :, : tile.keys],
            values[tile.slot : tile.slot + 1, :, : tile.keys],
            attn_mask=tile.bias(sliding_window, heads // kv_heads, query),
            scale=scaling,
        )
        count = tile.rows.stop - tile.rows.start
        output[tile.rows] = attended.reshape(heads, count + tile.pad, -1)[:, :count].transpose(0, 1)
    return output[None], None


AttentionInterface.register(NAME, attend)
