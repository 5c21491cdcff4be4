"""Compares the tokens of a draft model with the tokens of its target: which tokens may be proposed,
which tokens the draft model is fed instead of the target's, and which tokens have visible
characters.

Two tokenizers are nearly equal if all but a few ids stand for the same token in both. An id that
stands for different tokens in the two vocabularies is never proposed. Therefore all drafting
methods propose only tokens of the target. The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from tandem.drafter_service.tree.expansion import Expander, expander, where_possible
from tandem.protos.types import DraftShape, SamplingParams

# in place of a target's token that the draft model lacks, it is fed the first token of this list
# that it has
NEUTRAL_TOKENS = ("Ċ", "\n", "<0x0A>", "Ġ", "▁", " ")
# decoders write this into the text of a token that is only a part of a character
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Vocabulary:
    """The part of a draft model's vocabulary that is used, which is its first `count` ids. The
    `masked` ids do not stand for the same tokens in the target's vocabulary, so they are never
    proposed. For each id of the target that stands for another token in the draft model,
    `substitutes` has the id that the draft model is fed instead.
    """

    count: int
    masked: tuple[int, ...] = ()
    substitutes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def shared(cls, count: int, own: Mapping[int, str], target: Mapping[int, str]) -> Vocabulary:
        """Return the vocabulary of a draft model whose tokens (`own`) are nearly the same as those
        of its target (`target`). Instead of each of the target's tokens, the draft model is fed its
        own token of the same name, or a neutral token if it has none. A tokenizer may list tokens
        for which the draft model has no logits; such tokens are ignored.
        """
        own = {index: token for index, token in own.items() if index < count}
        ids = {token: index for index, token in own.items()}
        neutral = next((ids[token] for token in NEUTRAL_TOKENS if token in ids), 0)
        same = {index for index, token in own.items() if target.get(index) == token}
        lacking = (index for index in range(max(target) + 1) if index not in same)
        return cls(
            count,
            tuple(index for index in range(count) if index not in same),
            {index: ids.get(target.get(index, ""), neutral) for index in lacking},
        )

    def read(self, tokens: Iterable[int]) -> tuple[int, ...]:
        """Return the tokens that the draft model is fed instead of these tokens of the target."""
        if not self.substitutes:
            return tuple(tokens)
        return tuple(self.substitutes.get(token, token) for token in tokens)

    def proposable(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the first `count` columns of logits [rows, vocab], as [rows, count], with minus
        infinity for each token that may not be proposed.
        """
        rows = logits[:, : self.count]
        if not self.masked:
            return rows
        return rows.index_fill(1, self._masked_ids.to(rows.device), -torch.inf)

    def expander(
        self, shape: DraftShape, params: SamplingParams, root: int, visible: torch.Tensor
    ) -> Expander:
        """Return the expander to use for logits that `proposable` returned. The parameters are
        those of `expansion.expander`.
        """
        propose = expander(shape, params, root, visible)
        return where_possible(propose) if self.masked else propose

    @cached_property
    def _masked_ids(self) -> torch.Tensor:
        """The masked ids, int64 [masked]."""
        return torch.tensor(self.masked)


def visible_tokens(texts: Iterable[str]) -> torch.Tensor:
    """Return for each token whether its text has a visible character and no incomplete one, bool
    [tokens].
    """
    return torch.tensor([_is_visible(text) for text in texts])


def _is_visible(text: str) -> bool:
    return REPLACEMENT not in text and any(
        letter.isprintable() and not letter.isspace() for letter in text
    )
