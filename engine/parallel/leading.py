"""Run a model that is split among ranks: rank 0 decides which operations are run, and the other
ranks run them too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from tandem.engine.cache.pages import PageTable
from tandem.engine.cache.pool import KVPool
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel
from tandem.engine.parallel.ranks import Ranks
from tandem.engine.parallel.shards import gathered
from tandem.engine.runner import HFRunner


class RankPool(KVPool):
    """The KV cache of one rank, which holds the keys and values of the rank's heads."""

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return whether all keys and values at the positions from `start` to `stop` of a page
        table are finite, in the heads of all ranks.
        """
        own = torch.tensor([super().finite(table, start, stop)], device=self._device)
        return all(bool(each) for each in gathered(own))


class LeadingPool(RankPool):
    """The KV cache of rank 0. Each change to this cache is also made on the other ranks."""

    def __init__(self, ranks: Ranks, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._ranks = ranks

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Copy positions from one page table to another, on all ranks."""
        self._ranks.tell("copy", source, target, start, stop)
        super().copy(source, target, start, stop)

    def compact(self, table: PageTable, start: int, path: Sequence[int]) -> None:
        """Move the keys and values of a tree path to consecutive positions of a page table, on all
        ranks.
        """
        self._ranks.tell("compact", table, start, path)
        super().compact(table, start, path)

    def finite(self, table: PageTable, start: int, stop: int) -> bool:
        """Return whether all keys and values at the positions from `start` to `stop` of a page
        table are finite, on all ranks.
        """
        self._ranks.tell("finite", table, start, stop)
        return super().finite(table, start, stop)


class LeadingRunner(HFRunner):
    """The runner of rank 0. This runner makes the other ranks run the same passes."""

    def __init__(self, ranks: Ranks, model: HFModel, positions: int, exact: bool) -> None:
        self._ranks = ranks
        ranks.tell("prepare", positions, exact)
        super().__init__(model, positions, exact, pool=partial(LeadingPool, ranks))

    @property
    def lost(self) -> str | None:
        """The reason why no more passes can run: a rank has ended. The value is None while all
        ranks run.
        """
        return self._ranks.lost

    def give_up_exactness(self) -> bool:
        """Switch off exact mode, which is slower, on all ranks. Returns whether this changes how
        forward passes are computed.
        """
        self._ranks.tell("give_up_exactness")
        return super().give_up_exactness()

    def capture_passes(self) -> int:
        """Capture the CUDA graphs of all passes, on all ranks. Returns the number of graphs that
        rank 0 captured.
        """
        self._ranks.tell("capture_passes")
        return super().capture_passes()

    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed segments in one forward pass on all ranks; return their float32 logits."""
        self._ranks.tell("feed", segments)
        return super().__call__(segments)


class Follower:
    """The runner of a rank other than 0. This runner executes the operations that rank 0 sends."""

    def __init__(self, model: HFModel) -> None:
        self._model = model
        self._runner: HFRunner

    def __call__(self, name: str, arguments: Sequence[Any]) -> None:
        """Execute the operation `name` that rank 0 sent, with its arguments."""
        if name == "prepare":
            positions, exact = arguments
            self._runner = HFRunner(self._model, positions, exact, pool=RankPool)
        elif name == "feed":
            self._runner(*arguments)
        elif hasattr(RankPool, name):
            getattr(self._runner.pool, name)(*arguments)
        else:
            getattr(self._runner, name)(*arguments)
