"""The tokens of a draft model compared with its target's: which tokens the draft model may propose,
which tokens it is fed for a text, and which tokens a reader would see.

In nearly equal tokenizers, all but a few ids stand for the same token. An id that stands for
different tokens is never proposed, so every draft consists of the target's tokens, in whatever way
it is made from the logits. The module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from tandem.drafter_service.tree.expansion import Expander, expander, where_possible
from tandem.protos.types import DraftShape, SamplingParams

# a token that the draft model lacks is read as the first of these tokens that the draft model has
NEUTRAL_TOKENS = ("Ċ", "\n", "<0x0A>", "Ġ", "▁", " ")
REPLACEMENT = "\ufffd"  # appears in the text of a token that is only a part of a character


@dataclass(frozen=True)
class Vocabulary:
    """The first `count` ids of a draft model. The `masked` ids stand for other tokens in the
    target. For each id of the target that stands for another token in the draft model,
    `substitutes` has the id that the draft model is fed instead.
    """

    count: int
    masked: tuple[int, ...] = ()
    substitutes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def shared(cls, count: int, own: Mapping[int, str], target: Mapping[int, str]) -> Vocabulary:
        """Return the vocabulary of a draft model with its `own` tokens and a target with nearly the
        same tokens. A token of the target is read as the draft model's token of the same name, or
        as a neutral token if there is none. A tokenizer may list tokens that the draft model has no
        logits for; such tokens do not count as its own.
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
        """Return the token that the draft model is fed for each token of a text."""
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
        """Return the expander for `proposable` logits, as `expansion.expander` does."""
        propose = expander(shape, params, root, visible)
        return where_possible(propose) if self.masked else propose

    @cached_property
    def _masked_ids(self) -> torch.Tensor:
        """The masked ids, int64 [masked]."""
        return torch.tensor(self.masked)


def visible_tokens(texts: Iterable[str]) -> torch.Tensor:
    """Tell for each token whether its text has a visible character and no broken one, bool
    [tokens].
    """
    return torch.tensor([_is_visible(text) for text in texts])


def _is_visible(text: str) -> bool:
    return REPLACEMENT not in text and any(
        letter.isprintable() and not letter.isspace() for letter in text
    )
