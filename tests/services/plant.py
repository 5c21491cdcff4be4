"""Where a mistake can be planted, and ways to do it that several mistakes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.engine.forward.cpu import paths
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda import table
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.forward.segment import Segment
from tandem.engine.runner import HFRunner


@dataclass(frozen=True, slots=True)
class Plant:
    """What a mistake can be planted in: the engine's functions, a loaded model, its files."""

    patch: pytest.MonkeyPatch
    forward: HFRunner
    folder: Path

    @property
    def network(self) -> Any:
        return self.forward.model.network


def turn(plant: Plant, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rotate by other positions than those of the rows."""
    rotary = plant.network.model.rotary_emb
    right = rotary.forward

    def wrong(hidden: torch.Tensor, position_ids: torch.Tensor, **options: Any) -> Any:
        return right(hidden, change(position_ids), **options)

    plant.patch.setattr(rotary, "forward", wrong)


def spoil_rows(plant: Plant, spoil: Callable[[RowPlan], None]) -> None:
    """Change what is laid out for passes by rows."""
    right = table._rows

    def wrong(*given: Any) -> RowPlan:
        rows = right(*given)
        spoil(rows)
        return rows

    plant.patch.setattr(table, "_rows", wrong)


def spoil_paths(plant: Plant, spoil: Callable[[PathPlan], None]) -> None:
    """Change what is laid out for passes along paths."""
    right = paths.path_plan

    def wrong(segments: list[Segment]) -> PathPlan:
        plan = right(segments)
        spoil(plan)
        return plan

    plant.patch.setattr(paths, "path_plan", wrong)
