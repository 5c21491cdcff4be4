"""Attention of a pass by rows: a flash kernel over the prefixes, again over the tails, and the two
results joined by the sums that they are shares of.

The kernel comes with PyTorch. It takes keys in pages, where they lie, or one run after the other,
and never splits a run: what a row gets depends on its own run alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from tandem.engine.cache.pages import page_of
from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.forward.cuda.rows import TAIL, KeyRuns, PrefixAndTail, RowPlan

OPERATOR = torch.ops.aten._flash_attention_forward
# without it some versions split the keys of a run by how many runs there are; others never do
NO_SPLIT = (
    {"num_splits": 1}
    if any(each.name == "num_splits" for each in OPERATOR.default._schema.arguments)
    else {}
)
TOLERANCE = 0.03  # of an attended value, in half precision
TRIAL = ((3, 0), (33, 90), (1, 96), (5, 65))  # rows and keys of each run
PAGES = ((2, 0), (3, 1), (0, 3), (1, 2))  # of each run; of those in pages it sees half a page more


def attention(
    rows: RowPlan,
    query: torch.Tensor,  # [1, heads, rows, size]
    keys: torch.Tensor,  # [positions, kv heads, size]
    values: torch.Tensor,
    page: int,
    scaling: float | None,
    known: dict[int, PrefixAndTail],
) -> torch.Tensor:
    """What the rows of a pass see, whose keys are stored already; [rows, heads, size].

    Query heads that share a key head are folded into rows, so that its keys are read once. `known`
    is what earlier layers of the same pass found rows to see, by heads that share a key head.
    """
    heads, count, size = query.shape[1:]
    kv_heads = keys.shape[1]
    repeat = heads // kv_heads
    folded = query[0].transpose(0, 1).reshape(count, kv_heads, repeat, size).transpose(1, 2)
    folded = folded.reshape(count * repeat, kv_heads, size)
    if repeat not in known:
        known[repeat] = rows.prefix_and_tail(repeat)
    prefix_and_tail, scale = known[repeat], size**-0.5 if scaling is None else scaling
    in_pages = keys.unflatten(0, (-1, page)), values.unflatten(0, (-1, page))
    early, early_sums = flash_kernel(folded, *in_pages, prefix_and_tail.prefix, scale)
    gathered = keys.index_select(0, rows.tail_slots), values.index_select(0, rows.tail_slots)
    late, late_sums = flash_kernel(folded, *gathered, prefix_and_tail.tail, scale)
    early_sums = early_sums.masked_fill(prefix_and_tail.short, -torch.inf)
    share = torch.sigmoid(early_sums - late_sums)[..., None]
    mixed = torch.lerp(late.float(), early.float(), share).to(query.dtype)
    return mixed.view(count, repeat, kv_heads, size).transpose(1, 2).reshape(count, heads, size)


def flash_kernel(
    query: torch.Tensor,  # [rows, heads, size]
    keys: torch.Tensor,  # [TAIL * runs, heads, size], or [pages, page, heads, size]
    values: torch.Tensor,
    spans: KeyRuns,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every row attends to the keys of its run: [rows, heads, size], zeros where there are none;
    and the logarithms of the sums of exponentials, float32 [rows, heads].

    The call below `torch.nn.attention.varlen`, whose own takes no `widest`. A `widest` of one row
    would choose another kernel, but only if heads shared keys.
    """
    in_pages = {} if spans.pages is None else {"block_table": spans.pages}
    output, sums, *_ = OPERATOR(
        query,
        keys,
        values,
        spans.bounds,
        spans.starts,
        spans.widest,
        TAIL if spans.pages is None else spans.pages.shape[1] * keys.shape[1],
        0.0,  # dropout
        False,  # causal
        False,  # debug mask
        scale=scale,
        seqused_k=spans.lengths,
        **in_pages,
        **NO_SPLIT,
    )
    return output, sums.t()


def reference_kernel(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spans: KeyRuns, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same spelled out, run by run, in float64."""
    output, sums = torch.zeros_like(query), query.new_full(query.shape[:2], torch.inf).float()
    bounds, starts = spans.bounds.tolist(), spans.starts.tolist()
    for run, length in enumerate(spans.lengths.tolist()):
        rows = slice(*bounds[run : run + 2])
        if rows.start == rows.stop or not length:
            continue
        if spans.pages is None:
            own = keys[starts[run] :], values[starts[run] :]
        else:
            pages = spans.pages[run, : -(-length // keys.shape[1])].long()
            own = keys[pages].flatten(0, 1), values[pages].flatten(0, 1)
        shared = own[0][:length].double().permute(1, 2, 0), own[1][:length].double().transpose(0, 1)
        scores = query[rows].double().transpose(0, 1) @ shared[0] * scale  # [heads, rows, keys]
        output[rows] = (scores.softmax(-1) @ shared[1]).transpose(0, 1).to(query.dtype)
        sums[rows] = scores.logsumexp(-1).t().float()
    return output, sums


def why_unsupported(
    layers: Iterable[LayerGeometry], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why the kernel cannot be used for some layer, found out by trying it; None if it can."""
    for layer in set(layers):
        if layer.key_size != layer.value_size:
            return "keys and values differ in size"
        try:
            off = _difference(layer, dtype, device)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:  # or a version that takes no pages
            return str(error).splitlines()[0]
        if not off <= TOLERANCE:
            return f"the attention kernel is off by {off:.2g}"
    return None


def _difference(layer: LayerGeometry, dtype: torch.dtype, device: torch.device) -> float:
    """The largest between the kernel and the same spelled out, on random numbers: of runs one after
    the other, and in pages.
    """
    generator, page = torch.Generator().manual_seed(0), page_of(device)
    counts, lengths = (torch.tensor(each, device=device).int() for each in zip(*TRIAL, strict=True))
    bounds, widest = torch.cat([counts.new_zeros(1), counts.cumsum(0).int()]), int(counts.max())
    starts = torch.arange(len(bounds), device=device).int() * TAIL
    pages = torch.tensor(PAGES, device=device).int()
    longer = (lengths > 0).int() * (page // 2) + lengths
    tails = KeyRuns(bounds, starts, lengths, widest)
    prefixes = KeyRuns(bounds, starts, longer, widest, pages)

    def some(*shape: int) -> torch.Tensor:
        numbers = torch.randn(*shape, layer.heads, layer.key_size, generator=generator)
        return numbers.to(device, dtype)

    query, scale, worst = some(int(counts.sum())), layer.key_size**-0.5, 0.0
    for spans, shape in ((tails, (TAIL * len(TRIAL),)), (prefixes, (int(pages.max()) + 1, page))):
        keys, values = some(*shape), some(*shape)
        found, sums = flash_kernel(query, keys, values, spans, scale)
        expected, expected_sums = reference_kernel(query, keys, values, spans, scale)
        seeing = expected_sums.isfinite()
        off = (found - expected).abs().max(), (sums - expected_sums)[seeing].abs().max()
        worst = max(worst, *(float(each) for each in off))
    return worst
