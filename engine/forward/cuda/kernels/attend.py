"""Compute the attention of the rows of a pass with two kernels. The first kernel attends to the
prefixes of the rows, chunk by chunk. The second kernel attends to the tail of each row, and merges
the result with the results for the chunks of the row's prefix.

The position of a row alone determines where its keys are split into prefix and tail, and in which
order they are summed. The rows of a run are processed together, so a block of keys may be visible
to some of these rows and hidden from others. A block that is hidden from a row adds exact zeros to
the sums of that row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.engine.cache.pages import PAGE
from tandem.engine.forward.cuda.kernels.launch import STRICT, power_of_two, precision
from tandem.engine.forward.cuda.kernels.softmax import NOTHING, add, join
from tandem.engine.forward.cuda.rows import HEADER, MAX_CHUNKS, RECORD, TAIL, RowPlan, block_rows
from tandem.engine.forward.dense import AttentionOptions

PROGRAMS = 264  # Triton programs of the first kernel: two per multiprocessor of an H100
LANES = 32  # number of keys that the second kernel reads at a time
WIDE = 128  # the largest head size for which 4 warps have enough registers


@triton.jit(do_not_specialize_on_alignment=["positions", "reads"])
def _attend_chunks(
    query, keys, values, positions, reads, mixed_at, sums_at, query_row, query_head, scale, cap,
    window, HEADER: tl.constexpr, RECORD: tl.constexpr, MAX_CHUNKS: tl.constexpr,
    PROGRAMS: tl.constexpr, REPEAT: tl.constexpr, REPEATS: tl.constexpr, ROWS: tl.constexpr,
    SHARED: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr, VALUES: tl.constexpr,
    VALUE_LANES: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the attention of every run of rows over the chunks of its prefix, per key head."""
    # all pairs of a chunk and a key head are distributed over the Triton programs
    lane, value_lane = tl.arange(0, LANES), tl.arange(0, VALUE_LANES)
    inside, value_inside = lane < SIZE, value_lane < VALUES
    each, sub = tl.arange(0, ROWS * REPEATS), tl.arange(0, ROWS * REPEATS) % REPEATS
    at = tl.arange(0, PAGE)
    count = tl.load(reads)
    for number in range(tl.program_id(0), count * SHARED, PROGRAMS):
        record = reads + HEADER + number // SHARED * RECORD
        head = number % SHARED
        first, last = tl.load(record), tl.load(record + 1)
        low, high = tl.load(record + 2), tl.load(record + 3)
        chunk, pages = tl.load(record + 4), reads + tl.load(record + 5)
        row = first + each // REPEATS
        fits = (row < last) & (sub < REPEAT)
        offset = row.to(tl.int64) * query_row + (head * REPEAT + sub) * query_head
        asked_at = query + offset[:, None] + lane[None, :]
        asked = tl.load(asked_at, mask=fits[:, None] & inside[None, :], other=0.0)
        start = low
        if WINDOWED:
            position = tl.load(positions + row, mask=fits, other=0).to(tl.int32)
            lowest = tl.min(tl.where(fits, position, 2147483647), 0) - window + 1
            start = tl.maximum(low, lowest // PAGE * PAGE)
        top = tl.full((ROWS * REPEATS,), NOTHING, tl.float32)
        total = tl.zeros((ROWS * REPEATS,), tl.float32)
        mixed = tl.zeros((ROWS * REPEATS, VALUE_LANES), tl.float32)
        for block in range(start, high, PAGE):
            page = tl.load(pages + (block - low) // PAGE).to(tl.int64)
            slot = (page * PAGE + at) * SHARED + head
            seen = block + at < high
            mask = seen[None, :]
            if WINDOWED:
                mask = mask & (block + at[None, :] > position[:, None] - window)
            top, total, mixed = add(
                *(asked, keys, values, slot, seen, mask, scale, cap, top, total, mixed),
                *(SIZE, LANES, VALUES, VALUE_LANES, CAPPED, PRECISION),
            )
        to = ((row.to(tl.int64) * SHARED + head) * REPEAT + sub) * MAX_CHUNKS + chunk
        mixed_to = mixed_at + to[:, None] * VALUES + value_lane[None, :]
        tl.store(mixed_to, mixed, mask=fits[:, None] & value_inside[None, :])
        tl.store(sums_at + to * 2, top, mask=fits)
        tl.store(sums_at + to * 2 + 1, total, mask=fits)


@triton.jit(do_not_specialize_on_alignment=["tails", "counts"])
def _attend_tail(
    query, keys, values, tails, counts, mixed_at, sums_at, sinks, out, query_row, query_head,
    scale, cap, window, TAIL: tl.constexpr, STEP: tl.constexpr, MAX_CHUNKS: tl.constexpr,
    REPEAT: tl.constexpr, REPEATS: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr,
    LANES: tl.constexpr, VALUES: tl.constexpr, VALUE_LANES: tl.constexpr, WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the attention of one row for one key head. The kernel first attends to the row's
    tail, then merges the results for the chunks of the prefix in ascending order, and finally adds
    the attention sink.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane, value_lane = tl.arange(0, LANES), tl.arange(0, VALUE_LANES)
    inside, value_inside = lane < SIZE, value_lane < VALUES
    sub = tl.arange(0, REPEATS)
    fits = sub < REPEAT
    offset = row * query_row + (head * REPEAT + sub) * query_head
    asked = tl.load(
        query + offset[:, None] + lane[None, :], mask=fits[:, None] & inside[None, :], other=0.0
    )
    length = tl.load(counts + row * 2)
    chunks = tl.load(counts + row * 2 + 1)
    top = tl.full((REPEATS,), NOTHING, tl.float32)
    total = tl.zeros((REPEATS,), tl.float32)
    mixed = tl.zeros((REPEATS, VALUE_LANES), tl.float32)
    at = tl.arange(0, STEP)
    for block in range(0, TAIL, STEP):
        seen = block + at < length
        slot = tl.load(tails + row * TAIL + block + at, mask=seen, other=0) * SHARED + head
        mask = seen
        if WINDOWED:
            mask = mask & (block + at > length - 1 - window)
        top, total, mixed = add(
            *(asked, keys, values, slot, seen, mask[None, :], scale, cap, top, total, mixed),
            *(SIZE, LANES, VALUES, VALUE_LANES, CAPPED, PRECISION),
        )
    number = ((row * SHARED + head) * REPEAT + sub) * MAX_CHUNKS
    given = number, chunks, mixed_at, sums_at, fits, top, total, mixed
    top, total, mixed = join(*given, VALUES, VALUE_LANES)
    if SINKS:
        sink = tl.load(sinks + head * REPEAT + sub, mask=fits, other=NOTHING).to(tl.float32)
        higher = tl.maximum(top, sink)
        own = tl.exp(top - higher)
        total = total * own + tl.exp(sink - higher)
        mixed = mixed * own[:, None]
    to = ((row * SHARED + head) * REPEAT + sub)[:, None] * VALUES + value_lane[None, :]
    found = (mixed / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + to, found, mask=fits[:, None] & value_inside[None, :])


def attend(
    plan: RowPlan,
    query: torch.Tensor,  # [1, heads, rows, size], contiguous in the last dimension
    keys: torch.Tensor,  # [positions, kv heads, size]
    values: torch.Tensor,  # [positions, kv heads, value size]
    options: AttentionOptions,
) -> torch.Tensor:
    """Return the attention output of the rows of a pass, [rows, heads, value size]. `keys` and
    `values` must already contain the keys and values of these rows.
    """
    heads, count, size = query.shape[1:]
    shared, value_size = values.shape[1:]
    repeat = heads // shared
    repeats = power_of_two(repeat)
    mixed = query.new_empty(count, heads, MAX_CHUNKS, value_size, dtype=torch.float32)
    sums = query.new_empty(count, heads, MAX_CHUNKS, 2, dtype=torch.float32)
    out = query.new_empty(count, heads, value_size)
    scale = size**-0.5 if options.scaling is None else options.scaling
    how = (query.stride(2), query.stride(1), scale, options.softcap or 0.0, options.window or 0)
    shapes = _shapes(query, values, options)
    _attend_chunks[(PROGRAMS,)](
        *(query, keys, values, plan.positions, plan.reads, mixed, sums, *how),
        HEADER=HEADER,
        RECORD=RECORD,
        PROGRAMS=PROGRAMS,
        REPEATS=repeats,
        ROWS=max(block_rows(repeat, query.dtype), -(-16 // repeats)),
        PAGE=PAGE,
        **shapes,
    )
    sinks = out if options.sinks is None else options.sinks
    _attend_tail[(count, shared)](
        *(query, keys, values, plan.tail_slots, plan.counts, mixed, sums, sinks, out, *how),
        TAIL=TAIL,
        STEP=LANES,
        REPEATS=max(repeats, 16),
        SINKS=options.sinks is not None,
        **shapes,
    )
    return out


def _shapes(
    query: torch.Tensor, values: torch.Tensor, options: AttentionOptions
) -> dict[str, object]:
    """Return the compile-time constants that the two kernels have in common."""
    (heads, _, size), (shared, value_size) = query.shape[1:], values.shape[1:]
    return {
        "MAX_CHUNKS": MAX_CHUNKS,
        "REPEAT": heads // shared,
        "SHARED": shared,
        "SIZE": size,
        "LANES": max(power_of_two(size), 16),
        "VALUES": value_size,
        "VALUE_LANES": max(power_of_two(value_size), 16),
        "WINDOWED": options.window is not None,
        "CAPPED": options.softcap is not None,
        "PRECISION": precision(query.dtype),
        "num_warps": 4 if size <= WIDE else 8,
        "num_stages": 1 if query.dtype == torch.float32 else 3,
        **STRICT,
    }
