"""The interface of the model runner that scheduler, self-test and services use. A model runner runs
passes over segments and has a KV cache with page tables. `engine.runner` has the implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tandem.engine.cache.kv_cache import KVCache
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel


class ModelRunner(Protocol):
    """Runs forward passes of one model over many sessions."""

    exact: bool

    @property
    def model(self) -> HFModel:
        """The model that is run."""

    @property
    def pool(self) -> KVCache:
        """The KV cache in which the fed positions are kept."""

    @property
    def backend(self) -> str:
        """The attention backend that the steps use."""

    @property
    def problem(self) -> str | None:
        """Why the runner is slower than it could be; None if it is not."""

    @property
    def lost(self) -> str | None:
        """Why there can be no more passes, however often they are tried; None while passes are
        possible.
        """

    @property
    def kernels(self) -> str:
        """The kernels that multiply by the weights, and how much of a pass runs without Python."""

    @property
    def unfused(self) -> str | None:
        """Why every pass calls the network's own code; None if the passes run a program instead."""

    @property
    def batch_variant(self) -> str | None:
        """The library that makes the runner inexact, because its kernels round a row differently
        for different numbers of rows. None if there is no such library.
        """

    def give_up_exactness(self) -> bool:
        """Give up exactness and its cost; return whether passes run differently from now on."""

    def capture_passes(self) -> int:
        """Capture the passes that would otherwise be captured while serving; return how many."""

    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Feed all segments in one step. Returns float32 logits per segment, [num_logits, vocab],
        which are NaN where the model overflowed.
        """

    def wait(self) -> None:
        """Wait until the device has finished all passes that were launched."""
