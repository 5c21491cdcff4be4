"""Compute the attention of a pass that a `RowPlan` describes. On a CUDA device, this project's
kernels compute it; elsewhere, a reference implementation computes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.forward.cuda.rows import HEADER, RECORD, TAIL, KVLayout, RowPlan, block_rows
from tandem.engine.forward.cuda.table import row_plans
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.forward.segment import Segment
from tandem.protos import tree

Attend = Callable[
    [RowPlan, torch.Tensor, torch.Tensor, torch.Tensor, AttentionOptions], torch.Tensor
]

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.03}  # allowed difference
# for each session of the kernel trial: the number of cached tokens, and the number of tree nodes
TRIAL = ((0, 3), (40, 9), (95, 2), (330, 5), (700, 40))
WINDOW = 100  # length of a sliding window in the trial, in positions


def attend(
    rows: RowPlan,
    query: torch.Tensor,  # [1, heads, rows, size]
    keys: torch.Tensor,  # [positions, kv heads, size]
    values: torch.Tensor,  # [positions, kv heads, value size]
    options: AttentionOptions,
) -> torch.Tensor:
    """Return the attention output of the rows of a pass, [rows, heads, value size]. `keys` and
    `values` must already contain the keys and values of these rows.
    """
    if query.device.type == "cuda":
        from tandem.engine.forward.cuda.kernels import attend as kernels

        return kernels.attend(rows, query, keys, values, options)
    return definition(rows, query, keys, values, options)


def definition(
    rows: RowPlan,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Reference implementation of `attend`, which computes row by row in float64."""
    heads, count, size = query.shape[1:]
    shared, value_size = values.shape[1:]
    slots = [*zip(_prefixes(rows), rows.tail_slots.view(count, TAIL).tolist(), strict=True)]
    lengths = rows.counts.view(count, 2)[:, 0].tolist()
    out = query.new_empty(count, heads, value_size)
    scale = size**-0.5 if options.scaling is None else options.scaling
    for row, ((prefix, tail), length) in enumerate(zip(slots, lengths, strict=True)):
        seen = torch.tensor(prefix + tail[:length], device=query.device)
        asked = query[0, :, row].double().view(shared, -1, size)
        scores = asked @ keys[seen].double().permute(1, 2, 0) * scale  # [kv heads, repeat, seen]
        if options.softcap is not None:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        if options.window is not None:
            scores[..., : max(len(seen) - options.window, 0)] = -torch.inf
        if options.sinks is not None:
            sinks = options.sinks.double().view(shared, -1, 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., : len(seen)]
        out[row] = (weights @ values[seen].double().transpose(0, 1)).view(heads, -1).to(out.dtype)
    return out


def _prefixes(rows: RowPlan) -> list[list[int]]:
    """Return the slots of each row's prefix, computed from the chunk records in `rows.reads`."""
    reads = rows.reads.tolist()
    found: list[list[int]] = [[] for _ in range(rows.count)]
    for number in range(reads[0]):
        record = reads[HEADER + number * RECORD :][:RECORD]
        first, last, low, high, _, pages = record
        slots = [
            reads[pages + (position - low) // PAGE] * PAGE + position % PAGE
            for position in range(low, high)
        ]
        for row in range(first, last):
            found[row] += slots
    return found


def why_unsupported(
    layers: Iterable[LayerGeometry], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Try the attention kernels on each kind of layer. Return None if the kernels work for all
    layers, and otherwise the reason why they cannot be used. Raises OutOfMemoryError.
    """
    if dtype not in TOLERANCE:
        return f"there are no attention kernels for {dtype}"
    for layer in set(layers):
        try:
            off = _difference(layer, dtype, device)
        except torch.OutOfMemoryError:
            raise
        # for example: no Triton, no compiler, or a multiprocessor with too little memory
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            return f"the attention kernels cannot be used: {reason}"
        if not off <= TOLERANCE[dtype]:
            return f"the attention kernel differs from its reference by {off:.2g}"
    return None


def _difference(layer: LayerGeometry, dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest difference between the attention kernels and the reference implementation
    on random numbers. Positions to which no row attends contain NaN, so the result is NaN if a
    kernel uses one of these positions.
    """
    generator, rng = torch.Generator().manual_seed(0), random.Random(0)
    segments, used = list[Segment](), 0
    for context, nodes in TRIAL:
        pages = -(-(context + nodes) // PAGE)
        table = PageTable(list(range(used, used + pages))[::-1])
        used += pages
        parents = tree.hang(1, [rng.randrange(-1, node) for node in range(nodes - 1)])
        segments.append(Segment(table, context, (0,) * nodes, parents, 0))
    layout = KVLayout(used * PAGE, used, block_rows(layer.repeat, dtype))
    (plan,) = row_plans(segments, layout, exact=False, sizes=(64,))

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    stored = (used + 1) * PAGE, layer.heads
    keys, values = some(*stored, layer.key_size), some(*stored, layer.value_size)
    unseen = torch.ones(stored[0], dtype=torch.bool)
    for each in segments:
        unseen[each.table.slots(0, each.context + len(each.parents))] = False
    unseen[layout.padding] = False
    keys[unseen.to(device)] = values[unseen.to(device)] = torch.nan
    query = some(1, layer.heads * layer.repeat, plan.count, layer.key_size)
    options = AttentionOptions(
        window=WINDOW if layer.window else None,
        softcap=None if layer.fused else 5.0,
        sinks=None if layer.fused else some(layer.heads * layer.repeat),
    )
    found = attend(plan.to(device), query, keys, values, options)
    sinks = None if options.sinks is None else options.sinks.cpu()
    expected = definition(
        plan, query.cpu(), keys.cpu(), values.cpu(), replace(options, sinks=sinks)
    )
    return float((found.cpu() - expected).abs().max())
