"""The tokens of a draft model beside those of its target: what it may propose, and how it reads.

Of nearly the same tokenizers all but a few ids mean the same token. An id that does not is never
proposed, so a draft is one in the target's tokens, whatever is made of the logits. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from tandem.drafter_service.tree.expansion import Expander, expander, where_possible
from tandem.protos.types import DraftShape, SamplingParams

NEUTRAL = ("Ċ", "\n", "<0x0A>", "Ġ", "▁", " ")  # is read where the draft model lacks a token


@dataclass(frozen=True)
class Vocabulary:
    """The first `count` ids of a draft model. The `foreign` ones of them mean something else to the
    target; `other` are its own ids for ids of the target that mean something else to it.
    """

    count: int
    foreign: tuple[int, ...] = ()
    other: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def shared(cls, count: int, own: Mapping[int, str], target: Mapping[int, str]) -> Vocabulary:
        """Of a draft model with its own tokens and a target with nearly the same. The target's
        tokens are read as those of the same name, or as a neutral one if there is none. Tokens that
        the draft model has no logits for, which a tokenizer may list, are none of its own.
        """
        own = {index: token for index, token in own.items() if index < count}
        ids = {token: index for index, token in own.items()}
        neutral = next((ids[token] for token in NEUTRAL if token in ids), 0)
        same = {index for index, token in own.items() if target.get(index) == token}
        lacking = (index for index in range(max(target) + 1) if index not in same)
        return cls(
            count,
            tuple(index for index in range(count) if index not in same),
            {index: ids.get(target.get(index, ""), neutral) for index in lacking},
        )

    def read(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """Tokens of a text as the draft model is fed them, one for each."""
        if not self.other:
            return tuple(tokens)
        return tuple(self.other.get(token, token) for token in tokens)

    def proposable(self, logits: torch.Tensor) -> torch.Tensor:
        """Of logits [rows, vocab] those that may be proposed, [rows, count], the others among them
        being minus infinity.
        """
        rows = logits[:, : self.count]
        if not self.foreign:
            return rows
        return rows.index_fill(1, self._masked.to(rows.device), -torch.inf)

    def expander(
        self, shape: DraftShape, params: SamplingParams, root: int, visible: torch.Tensor
    ) -> Expander:
        """How to guess from logits that may be proposed, as `expansion.expander` does."""
        guess = expander(shape, params, root, visible)
        return where_possible(guess) if self.foreign else guess

    @cached_property
    def _masked(self) -> torch.Tensor:
        """The foreign ids, int64 [foreign]."""
        return torch.tensor(self.foreign)
