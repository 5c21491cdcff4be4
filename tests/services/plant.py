"""Where a mistake can be planted, and ways to plant it that several mistakes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.cache.pool import slot_index
from tandem.engine.forward import tiles
from tandem.engine.forward.cpu import paths
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda import table
from tandem.engine.forward.cuda.rows import KVLayout, RowPlan
from tandem.engine.forward.cuda.table import RowTable
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.tiles import TilePlan
from tandem.engine.runner import HFRunner


@dataclass(frozen=True, slots=True)
class Plant:
    """The places where a mistake can be planted: the engine's functions, a loaded model, and its
    files.
    """

    patch: pytest.MonkeyPatch
    forward: HFRunner
    folder: Path

    @property
    def network(self) -> Any:
        return self.forward.model.network


def turn(plant: Plant, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rotate queries and keys by changed positions."""
    rotary = plant.network.model.rotary_emb
    right = rotary.forward

    def wrong(hidden: torch.Tensor, position_ids: torch.Tensor, **options: Any) -> Any:
        return right(hidden, change(position_ids), **options)

    plant.patch.setattr(rotary, "forward", wrong)


def spoil_rows(plant: Plant, spoil: Callable[[RowPlan], None]) -> None:
    """Change the layout of passes by rows."""
    right = table.rows_plan

    def wrong(*given: Any) -> RowPlan:
        rows = right(*given)
        spoil(rows)
        return rows

    plant.patch.setattr(table, "rows_plan", wrong)


def spoil_paths(plant: Plant, spoil: Callable[[PathPlan], None]) -> None:
    """Change the layout of passes along paths."""
    right = paths.path_plan

    def wrong(segments: list[Segment]) -> PathPlan:
        plan = right(segments)
        spoil(plan)
        return plan

    plant.patch.setattr(paths, "path_plan", wrong)


def spoil_tables(plant: Plant, spoil: Callable[[list[list[int]]], None]) -> None:
    """Change the pages that a step's sessions read, for every layout."""
    of, tile_plan, path_plan = RowTable.of, tiles.tile_plan, paths.path_plan

    def tables_of(segments: Sequence[Segment]) -> list[list[int]]:
        tables = [list(segment.table.pages) for segment in segments]
        spoil(tables)
        return tables

    def rows(segments: Sequence[Segment], layout: KVLayout) -> RowTable:
        made = of(segments, layout)
        for own, pages in zip(made.pages, tables_of(segments), strict=False):
            own[: len(pages)] = pages
        return made

    def tiled(segments: Sequence[Segment], device: torch.device) -> TilePlan:
        made = tile_plan(segments, device)
        for tile, segment, pages in zip(made.tiles, segments, tables_of(segments), strict=True):
            end = segment.context + len(segment.parents)
            tile.keys = slot_index(PageTable(pages).slots(0, end), device)
        return made

    def along(segments: Sequence[Segment]) -> PathPlan:
        made, start = path_plan(segments), 0
        for segment, pages in zip(segments, tables_of(segments), strict=True):
            count = page_aligned(segment.context + len(segment.parents)) // PAGE
            made.paths.pages[start : start + count] = torch.tensor(pages[:count])
            start += count
        return made

    plant.patch.setattr(RowTable, "of", rows)
    plant.patch.setattr(tiles, "tile_plan", tiled)
    plant.patch.setattr(paths, "path_plan", along)
