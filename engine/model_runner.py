"""What scheduler, self-test and services need of whatever runs a model: passes over segments, and a
cache with KV ranges in it. `engine.runner` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tandem.engine.cache.kv_cache import KVCache
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel


class ModelRunner(Protocol):
    """Passes of one model over many sessions."""

    exact: bool

    @property
    def model(self) -> HFModel:
        """What it runs."""

    @property
    def pool(self) -> KVCache:
        """Where it keeps what it was fed."""

    @property
    def backend(self) -> str:
        """How it runs a step."""

    @property
    def problem(self) -> str | None:
        """Why it is not as fast as it could be; None if it is."""

    @property
    def lost(self) -> str | None:
        """Why there can be no more passes, however often they are tried; None while there can."""

    @property
    def kernels(self) -> str:
        """What multiplies its weights, and how much of a pass is done without Python."""

    @property
    def unfused(self) -> str | None:
        """Why the network's own code is called in every pass; None if it is not."""

    @property
    def batch_variant(self) -> str | None:
        """Whose kernels round a row differently by how many there are, so that it cannot be exact;
        None if none do.
        """

    def give_up_exactness(self) -> bool:
        """Give up to be exact, and what it costs; whether it goes another way from now on."""

    def capture_passes(self) -> int:
        """Prepare whatever would take time while serving; how many passes that are captured."""

    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed all; float32 logits per segment, [wanted, vocab], NaN where it overflowed."""

    def wait(self) -> None:
        """Until the device has done all passes, which may only have been launched."""
