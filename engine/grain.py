"""How many rows attention is given at least, and how wide, so that none of them depends on how many
there are. Kernels are chosen by shapes and round differently, so it is found out by trying.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from engine.cancelling import doubled
from engine.mixing import AT_ONCE, KEYS_AT_ONCE, Grain, Rule, mix
from engine.rooms import BLOCK

KEYS = (*range(1, KEYS_AT_ONCE // BLOCK + 2), 2 * KEYS_AT_ONCE // BLOCK + 1)  # blocks of them
COUNTS = (*range(1, AT_ONCE + 2), 47, BLOCK - 1)  # of a tile's rows
CAP = 50.0
GRAINS = [Grain(width, least) for least in (4, 8, 12, 16, 24, AT_ONCE) for width in (1, 32)]


def grain(sizes: tuple[int, int], repeat: int, fused: bool, like: torch.Tensor) -> Grain | None:
    """The finest grain with which rows do not depend on each other, for heads with keys and values
    of these sizes; None if there is none. `like` tells dtype and device.
    """
    return _agreeing(*sizes, repeat, fused, like.dtype, like.device, torch.get_num_threads())


@cache
@torch.inference_mode()
def _agreeing(
    key_size: int,
    value_size: int,
    repeat: int,
    fused: bool,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
) -> Grain | None:
    rule = Rule(scaling=3e5) if fused else Rule(scaling=3e5, softcap=CAP)
    trials = [
        [each.to(dtype).to(device) for each in _cancelling(key_size, value_size, repeat, count)]
        for count in (BLOCK * blocks for blocks in KEYS)
    ]
    return next((each for each in GRAINS if all(_agrees(each, rule, *t) for t in trials)), None)


def _agrees(
    grain: Grain, rule: Rule, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> bool:
    """Whether any of a block's rows are the same by themselves as all of them together."""
    repeat = rows.shape[1]

    def attended(chosen: list[int]) -> torch.Tensor:
        padded = chosen + chosen[:1] * grain.padding(len(chosen), repeat)
        query = rows[:, :, padded].reshape(1, 1, -1, rows.shape[3])
        bias = query.new_zeros(1, 1, query.shape[2], keys.shape[2])
        mixed = mix(query, keys, values, bias, rule, grain)
        return mixed.view(repeat, len(padded), -1)[:, : len(chosen)]

    whole = attended(list(range(BLOCK)))
    return all(
        torch.equal(attended(list(part)), whole[:, part.start : part.stop]) for part in _parts()
    )


def _parts() -> Iterator[range]:
    for count in COUNTS:
        yield range(count)
        yield range(BLOCK - count, BLOCK)


def _cancelling(
    key_size: int, value_size: int, repeat: int, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows [1, repeat, rows, size], keys and values [1, 1, keys, size] whose products and mixtures
    cancel.
    """
    source = torch.Generator().manual_seed(0)
    order = torch.randperm(key_size // 2, generator=source)
    pairs = torch.randperm(count // 2, generator=source)
    rows = doubled(repeat * BLOCK, key_size, -1, order, source)
    keys = doubled(count // 2, key_size, 1, order, source)
    values = torch.randn(count // 2, value_size, generator=source)
    return (
        rows.view(1, repeat, BLOCK, key_size),
        torch.cat([keys, keys[pairs]])[None, None],
        torch.cat([values, -values[pairs]])[None, None],
    )
