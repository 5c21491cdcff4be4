"""The part of a step's plan that all implementations of attention share: the step's rows as padded
tensors. All functions of this module are pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch

from tandem.engine.cache.pool import SlotIndex, slot_index
from tandem.engine.forward.segment import PackedRows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows of all segments of a step, one segment after the other, followed by padding rows.
    The keys of padding rows are not stored, and no row attends to them.
    """

    token_ids: torch.Tensor  # [1, rows]
    positions: torch.Tensor  # [1, rows]
    logits_rows: torch.Tensor  # indices of the rows that give logits, padded
    slots: SlotIndex  # slots of the new keys, without padding rows
    count: int  # number of rows without padding rows

    @classmethod
    def of(
        cls,
        packed: PackedRows,
        device: torch.device,
        padded: Callable[[int], int],
        **attention: Any,
    ) -> Self:
        """Return the plan of a step with the given rows. `padded(count)` returns the number of rows
        to which `count` rows are padded. `attention` contains the fields that a subclass adds.
        """
        count, logits_rows = len(packed.token_ids), packed.logits_rows
        padding = padded(count) - count

        def tensor(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.long, device=device)

        return cls(
            token_ids=tensor(packed.token_ids + packed.token_ids[:1] * padding)[None],
            positions=tensor(packed.positions + packed.positions[:1] * padding)[None],
            logits_rows=tensor(logits_rows + [0] * (padded(len(logits_rows)) - len(logits_rows))),
            slots=slot_index(packed.slots, device),
            count=count,
            **attention,
        )
