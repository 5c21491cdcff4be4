"""Apply rotary position embeddings (Su et al. 2021) and store keys and values, in one kernel
launch. A head x becomes x cos + turned(x) sin, where turned(x) is the negated second half of x
followed by its first half.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tandem.engine.forward.cuda.kernels.launch import STRICT, power_of_two


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _rotate_store(
    query, key, value, cos, sin, slots, turned, keys, values,
    query_row, query_head, key_row, key_head, value_row, value_head, angle_row,
    REPEAT: tl.constexpr, REPEATS: tl.constexpr, SHARED: tl.constexpr, HALF: tl.constexpr,
    HALVES: tl.constexpr, VALUES: tl.constexpr, VALUE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Apply rotary position embeddings to the key of one row and one head, and to the queries that
    share this key. Store the key and the value in the row's slot.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kind = turned.dtype.element_ty
    lane = tl.arange(0, HALVES)
    inside = (lane < HALF)[None, :]
    angle = row * angle_row + lane[None, :]
    cos1 = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    cos2 = tl.load(cos + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    sin1 = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    sin2 = tl.load(sin + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    each = tl.arange(0, REPEATS)[:, None]
    fits = (each < REPEAT) & inside
    number = head * REPEAT + each
    first = query + row * query_row + number * query_head + lane[None, :]
    one = tl.load(first, mask=fits, other=0.0).to(tl.float32)
    two = tl.load(first + HALF, mask=fits, other=0.0).to(tl.float32)
    to = turned + (row * SHARED * REPEAT + number) * 2 * HALF + lane[None, :]
    tl.store(to, _turn(one, cos1, -two, sin1, kind), mask=fits)
    tl.store(to + HALF, _turn(two, cos2, one, sin2, kind), mask=fits)
    slot = tl.load(slots + row) * SHARED + head
    first = key + row * key_row + head * key_head + lane[None, :]
    one = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    two = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    to = keys + slot * 2 * HALF + lane[None, :]
    tl.store(to, _turn(one, cos1, -two, sin1, kind), mask=inside)
    tl.store(to + HALF, _turn(two, cos2, one, sin2, kind), mask=inside)
    lane = tl.arange(0, VALUE_BLOCK)
    inside = lane < VALUES
    stored = tl.load(value + row * value_row + head * value_head + lane, mask=inside, other=0.0)
    tl.store(values + slot * VALUES + lane, stored, mask=inside)


@triton.jit
def _turn(one, cos, other, sin, kind: tl.constexpr):
    """Return one * cos + other * sin. Both products are rounded before they are added, as they
    would be by separate operations.
    """
    products = (one * cos).to(kind).to(tl.float32), (other * sin).to(kind).to(tl.float32)
    return (products[0] + products[1]).to(kind)


def rotate_store(
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, rows, size]
    value: torch.Tensor,  # [1, kv heads, rows, value size]
    cos: torch.Tensor,  # [..., rows, size]
    sin: torch.Tensor,
    slots: torch.Tensor,  # int64 [rows]
    keys: torch.Tensor,  # [positions, kv heads, size]
    values: torch.Tensor,
) -> torch.Tensor:
    """Return the queries with rotary positions, [1, heads, rows, size]. Store the keys with rotary
    positions, and the values, in their slots. Only the last dimension of each argument has to be
    contiguous.
    """
    heads, count, size = query.shape[1:]
    shared, value_size = values.shape[1:]
    turned = torch.empty(count, heads, size, dtype=query.dtype, device=query.device)
    strides = [each.stride(dim) for each in (query, key, value) for dim in (2, 1)]
    _rotate_store[(count, shared)](
        *(query, key, value, cos, sin, slots, turned, keys, values),
        *(*strides, cos.stride(-2)),
        REPEAT=heads // shared,
        REPEATS=power_of_two(heads // shared),
        SHARED=shared,
        HALF=size // 2,
        HALVES=power_of_two(size // 2),
        VALUES=value_size,
        VALUE_BLOCK=power_of_two(value_size),
        num_warps=2,
        **STRICT,
    )
    return turned.transpose(0, 1)[None]
