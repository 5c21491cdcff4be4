"""Attention of any number of rows: each has the bits that it has among all of its block."""

from __future__ import annotations

import pytest
import torch

from engine.attention import attend_tile
from engine.grain import GRAINS, _agreeing, grain
from engine.mixing import Grain, Rule
from engine.plan import Tile
from engine.rooms import BLOCK

SIZES = (16, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 192, 256)
CAPPED = Rule(softcap=30.0)
ASKED = [(Rule(), repeat, SIZES) for repeat in (1, 2, 3, 4, 7, 8)]
ASKED += [(CAPPED, repeat, (64, 128, 256)) for repeat in (1, 2, 4)]
ASKED = [(*asked, 11 * BLOCK) for asked in ASKED]
ASKED += [(Rule(), 2, (80, 128), 64 * BLOCK), (CAPPED, 2, (128, 256), 64 * BLOCK)]
ASKED += [(CAPPED, 2, (256,), 22 * BLOCK)]


def tile(start: int, count: int, keys: int) -> Tile:
    """Rows at positions from `start` on."""
    own, every = torch.arange(start, start + count), torch.arange(keys)
    return Tile(slice(0, count), 0, keys, every <= own[:, None], own, every, exact=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("rule", "repeat", "sizes", "seen"), ASKED, ids=lambda each: str(each)[:12]
)
@torch.inference_mode()
def test_a_row_does_not_depend_on_how_many_others_its_tile_has(
    dtype: str, rule: Rule, repeat: int, sizes: tuple[int, ...], seen: int
) -> None:
    """With heads as large as those of real models."""
    start, source = seen - BLOCK, torch.Generator().manual_seed(repeat)
    for size in sizes:
        made = (
            torch.randn(count, heads, size, generator=source).to(getattr(torch, dtype))
            for count, heads in ((BLOCK, repeat), (seen, 1), (seen, 1))
        )
        rows, keys, values = made
        query = rows.transpose(0, 1)[None]
        whole = attend_tile(tile(start, BLOCK, seen), query, keys, values, rule)
        for count in (1, 2, 3, 5, 8, 9, 13, 17, 33, 63):
            for first in (0, BLOCK - count):
                some = query[:, :, first : first + count]
                own = attend_tile(tile(start + first, count, seen), some, keys, values, rule)
                assert torch.equal(own, whole[first : first + count]), (size, count)


@pytest.mark.parametrize(("rows", "repeat", "fed"), [(1, 1, 12), (1, 4, 3), (3, 3, 4), (33, 1, 44)])
def test_few_rows_left_become_enough(rows: int, repeat: int, fed: int) -> None:
    assert rows + Grain(1, 12).padding(rows, repeat) == fed


def test_where_no_shape_agrees_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _agreeing.cache_clear()
    with monkeypatch.context() as trial:
        trial.setattr("engine.grain._agrees", lambda *_: False)
        assert grain((16, 16), 1, True, torch.empty(0)) is None
    _agreeing.cache_clear()
    assert grain((16, 16), 1, True, torch.empty(0)) in GRAINS
