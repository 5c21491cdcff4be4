"""The interface of the model runner, which the scheduler, the self-test and the services use. A
model runner runs forward passes over segments and owns a KV cache with page tables. `engine.runner`
implements the interface.
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
        """The model that the runner runs."""

    @property
    def pool(self) -> KVCache:
        """The KV cache that the forward passes read and write."""

    @property
    def backend(self) -> str:
        """The name of the attention backend in use."""

    @property
    def problem(self) -> str | None:
        """The reason why the runner is slower than it could be, or None if it is not."""

    @property
    def lost(self) -> str | None:
        """The reason why no forward pass can ever succeed again, or None while passes are
        possible.
        """

    @property
    def kernels(self) -> str:
        """Describes the kernels that multiply by the weights, and how much of a pass runs without
        Python.
        """

    @property
    def unfused(self) -> str | None:
        """The reason why forward passes run the network's own Python code, or None if they run a
        recorded program instead.
        """

    @property
    def batch_variant(self) -> str | None:
        """The library whose kernels make the runner inexact, or None if there is none. Such kernels
        round a row differently depending on the number of rows in a pass.
        """

    def give_up_exactness(self) -> bool:
        """Switch off exact mode, which is slower. Returns whether this changes how forward passes
        are computed.
        """

    def capture_passes(self) -> int:
        """Capture CUDA graphs of all pass shapes in advance, so that none is captured while
        serving; return how many graphs were captured.
        """

    def __call__(self, segments: Sequence[Segment]) -> list[torch.Tensor]:
        """Run the model over all segments in one step. Returns float32 logits per segment,
        [num_logits, vocab], which are NaN where the model overflowed.
        """

    def wait(self) -> None:
        """Wait until the device has finished all passes that were launched."""
