"""The attention hook, which a Hugging Face model calls instead of its own attention.

The hook stores the step's new keys and values in the KV pool, and computes attention over the pool.
If there is a kernel for all rows at once, the hook uses it; otherwise it computes attention tile by
tile, where a tile contains the rows of one session. The step is passed to the hook in a context
variable because not every model forwards keyword arguments to its attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from tandem.engine.cache.pool import KVPool, store_rows
from tandem.engine.forward import operations
from tandem.engine.forward.cpu.kernels import required_kernels
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda.attention import attend as attend_by_rows
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.forward.dense import AttentionOptions, dense_attention
from tandem.engine.forward.tiles import Tile, TilePlan
from tandem.protos.errors import Unusable

NAME = "tandem"
IGNORED = {
    "dropout",
    "is_causal",
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "cache_position",
    "output_router_logits",
}


@dataclass(slots=True)
class AttentionStep:
    """The data that attention needs in a forward pass."""

    plan: TilePlan | PathPlan | RowPlan
    pool: KVPool
    context: int  # the maximum number of tokens in a session


_current: ContextVar[AttentionStep] = ContextVar("step")


@contextmanager
def in_step(step: AttentionStep) -> Iterator[None]:
    """Context manager: attention calls inside it use the plan and the pool of this step."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, rows, size]
    value: torch.Tensor,  # [1, kv heads, rows, value size]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values of the current step, and return the attention output, [1, rows,
    heads, value size]. Raises Unusable if the model passes an option that Tandem does not support.
    """
    refuse_options(options)
    step = _current.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    how = options_of(step.context, scaling, sliding_window, softcap, s_aux)
    if (window := step.pool.windows[layer]) and sliding_window != window:
        raise Unusable("the sliding window of a layer differs from the one found at loading")
    keys, values = step.pool.keys[layer], step.pool.values[layer]
    new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    count = step.plan.count
    store_rows(keys, step.plan.slots, new_keys[:count])
    store_rows(values, step.plan.slots, new_values[:count])
    if isinstance(step.plan, RowPlan):
        return attend_by_rows(step.plan, query, keys, values, how)[None], None
    if isinstance(step.plan, PathPlan):
        rows = query[0].transpose(0, 1).contiguous()
        return required_kernels().attend(rows, keys, values, step.plan.paths, how)[None], None
    output = torch.cat([attend_tile(tile, query, keys, values, how) for tile in step.plan.tiles])
    padding = query.shape[2] - count
    return functional.pad(output, (0, 0, 0, 0, 0, padding))[None], None


def attention_of_turned(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,  # [1, 1, rows, size]
    sin: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Apply rotary position embeddings to the queries and keys, and return the attention output of
    the current step. The plan of the step must be a `RowPlan`.
    """
    step, layer = _current.get(), module.layer_idx
    assert isinstance(step.plan, RowPlan)
    keys, values = step.pool.keys[layer], step.pool.values[layer]  # type: ignore[index]
    stored = step.plan.slots, keys, values
    turned = operations.rotate_store(query, key, value, cos, sin, *stored)
    how = options_of(step.context, **options)
    return attend_by_rows(step.plan, turned, keys, values, how)[None], None


def options_of(
    context: int,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> AttentionOptions:
    """Return the options of a model's attention call as `AttentionOptions`. A sliding window of
    `context` positions or more is ignored, because no session has more than `context` tokens.
    """
    applies = sliding_window is not None and sliding_window < context
    return AttentionOptions(scaling, sliding_window if applies else None, softcap, s_aux)


def refuse_options(options: dict[str, Any]) -> None:
    """Raise Unusable if a model calls attention with an option that Tandem does not support."""
    for name, option in options.items():
        if name not in IGNORED and option is not None:
            raise Unusable(f"passes the attention option {name!r}, which Tandem does not support")


def attend_tile(
    tile: Tile,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Return the attention output of the rows in a tile, [rows, heads, value size]. `query`
    contains all rows of the step. `keys` and `values` are those of the whole pool, [positions, kv
    heads, size].

    Query heads that share a key head are treated as additional rows, so that no key has to be
    copied.
    """
    heads, kv_heads = query.shape[1], keys.shape[1]
    folded = query[:, :, tile.rows].reshape(1, kv_heads, -1, query.shape[3])
    shared = keys[tile.keys].transpose(0, 1)[None], values[tile.keys].transpose(0, 1)[None]
    mixed = dense_attention(
        folded, *shared, tile.bias(options.window, heads // kv_heads, query), options
    )
    return mixed.reshape(heads, tile.count, -1).transpose(0, 1)


AttentionInterface.register(NAME, attention)
