"""Run transformers' own `generate()` with the attention arithmetic of exact mode, to get reference
texts.

`generate()` runs one session with its own KV cache, and processes one token per step after the
prompt. This module replaces transformers' attention function with the engine's, and changes nothing
else.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel

from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.forward.attention import attend_tile, refuse_options
from tandem.engine.forward.cpu import panels
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.cpu.paths import Paths
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.tiles import tile_plan
from tandem.protos import tree

NAME = "tandem_reference"
PLAIN = torch.device("cpu")


def adopt(network: PreTrainedModel) -> None:
    """Replace a network's attention function by one that rounds like the engine in exact mode. The
    network can then process only one session at a time.
    """
    network.set_attn_implementation(NAME)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, cached + rows, size]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute causal attention for the newest rows. Returns [1, rows, heads, value size]."""
    refuse_options(options)
    count, length = query.shape[2], key.shape[2]
    rule = AttentionOptions(scaling, sliding_window, softcap, s_aux)
    if panels.why_unsupported(query.dtype, query.device) is None and (own := kernels()):
        rows, keys, values = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
        paths = Paths.straight(length - count, count)
        return own.attend(rows, keys, values, paths, rule)[None], None
    table = PageTable(list(range(page_aligned(length) // PAGE)))
    segment = Segment(table, length - count, (0,) * count, tree.chain(count), count)
    (tile,) = tile_plan([segment], PLAIN).tiles
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    return attend_tile(tile, query, keys, values, rule)[None], None


AttentionInterface.register(NAME, attend)
