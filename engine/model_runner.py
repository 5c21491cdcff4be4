"""What sessions, scheduler, self-test and services need of whatever runs a model: passes over
segments, a cache with KV ranges in it, and its properties.

`engine.runner` has it for Hugging Face models, `engine.gguf` for those of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from tandem.engine.cache.kv_cache import KVCache
from tandem.engine.forward.segment import Segment
from tandem.engine.model.reference import ReferenceLogits


class LoadedModel(Protocol):
    """What is known of a loaded model."""

    @property
    def kind(self) -> str:
        """Its class or architecture."""

    @property
    def reference(self) -> ReferenceLogits:
        """What it computes by itself, until it is released."""

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""

    @property
    def token_count(self) -> int:
        """Ids that the tokenizer knows; the rest of the vocabulary is padding."""

    @property
    def context_length(self) -> int:
        """Tokens of the longest text that it can be trusted with."""

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    @property
    def device(self) -> torch.device:
        """Where its logits are."""

    @property
    def numbers(self) -> str:
        """How its weights are stored, for people."""

    @property
    def position_bytes(self) -> int:
        """Bytes that one cached token takes."""

    @property
    def kernels(self) -> str:
        """What multiplies its weights."""


class ModelRunner(Protocol):
    """Passes of one model over many sessions."""

    exact: bool

    @property
    def model(self) -> LoadedModel:
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
