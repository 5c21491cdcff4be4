"""What a pool costs in memory: what was reckoned, and nothing before it is written."""

from __future__ import annotations

import psutil
import pytest
import torch

from tandem.engine.cache.pool import KVPool, LayerGeometry, position_bytes
from tandem.engine.cache.ranges import BLOCK

LAYERS = (LayerGeometry(1, 2, 1), LayerGeometry(2, 1, 3))
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pool_takes_the_memory_that_was_reckoned_and_whole_blocks(dtype: torch.dtype) -> None:
    pool = KVPool(LAYERS, 3 * BLOCK - 1, dtype, CPU)
    assert pool.positions == 2 * BLOCK
    stored = sum(store.nbytes for store in pool.keys + pool.values)
    assert stored == pool.positions * position_bytes(LAYERS, dtype)
    assert all(not store.any() for store in pool.keys + pool.values)


def test_untouched_positions_cost_no_memory() -> None:
    before = psutil.Process().memory_info().rss
    pool = KVPool([LayerGeometry(8, 64, 64)], 1 << 18, torch.float32, CPU)
    assert pool.keys[0].nbytes + pool.values[0].nbytes == 1 << 30
    assert psutil.Process().memory_info().rss - before < 1 << 27


def test_a_new_session_takes_about_the_memory_that_it_fills() -> None:
    """With large pages it would take one per layer at once, while everybody waits."""
    layers = [LayerGeometry(8, 64, 64)] * 32
    pool = KVPool(layers, 1 << 13, torch.float32, CPU)
    before = psutil.Process().memory_info().rss
    kv_range = pool.allocate(BLOCK)
    assert kv_range
    pool.wipe(kv_range)
    filled = BLOCK * position_bytes(layers, torch.float32)
    assert psutil.Process().memory_info().rss - before < filled + (1 << 23)
