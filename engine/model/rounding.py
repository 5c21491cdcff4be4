"""Compute the logits of the network that transformers loaded, and how far rounding alone may move
each row of logits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

# the limit of a row is this many times the distance by which rounding was seen to move it; in the
# tests, correct models moved rows by up to 2.9 times that distance, while mistakes that rounding
# does not hide moved rows by more than 6 times that distance
FACTOR = 4.0
# the same factor in float32, where another order of additions in linear layers moves rows as far;
# correct models moved rows by up to 5.7 times the distance, while mistakes moved rows by more than
# 1,400 times the distance
SUMS = 10.0
FLOOR = 6  # two computations are taken to differ by at least this many units of rounding
# a row is not compared, and has no limit, if rounding moves it more than this many times as far as
# the median row
UNSTABLE = 4.0
ATEN = torch.ops.aten
CHOICES = {ATEN.topk.default, ATEN.sort.default, ATEN.argmax.default, ATEN.max.dim}


class Difference(NamedTuple):
    """The difference of a row from its reference: `off` is its size, `limit` is the size that
    rounding explains, and `share` is `off` divided by `limit`.
    """

    share: float
    off: float
    limit: float


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """The tokens of a text, the network's logits [vocab] at some positions, and the limit at each
    of these positions: how far a correct computation may be off. The limit is infinite at a
    position where rounding moves the logits too far for a comparison.
    """

    tokens: tuple[int, ...]
    logits: dict[int, torch.Tensor]
    limits: dict[int, float]

    def differences(self, start: int, rows: torch.Tensor, positions: range) -> list[Difference]:
        """Return how far `rows`, [rows, vocab], are off at those of `positions` whose reference
        logits are known. `rows` are the logits of the tokens from `start` on. The difference is
        infinite if a row has values that are not numbers.
        """
        return [
            self._difference(position, rows[position - start])
            for position in self.logits
            if position in positions and start <= position < start + len(rows)
        ]

    def _difference(self, position: int, row: torch.Tensor) -> Difference:
        off, limit = _largest(self.logits[position], row), self.limits[position]
        share = off / max(limit, sys.float_info.min) if off < torch.inf else off
        return Difference(share, off, limit)


def typical_difference(differences: Sequence[Difference], smooth: bool) -> Difference:
    """Return how far a group of rows is off: the worst difference if the network is `smooth`
    (rounding moves no row far), otherwise the median difference.

    A network that chooses experts is not smooth in half precision. Two scores may be so close that
    rounding sends a token to another expert. The token's row is then far off, although the
    computation is correct. Such a jump happens to single tokens at random, while a mistake affects
    every row after some position, or every row that is fed in some way. Therefore, the median of
    the rows that are fed in one way and lie on one side of a position is far off only after a
    mistake. In float32, scores are never that close.
    """
    ordered = sorted(differences)
    return ordered[-1] if smooth else ordered[(len(ordered) - 1) // 2]


class ReferenceTexts:
    """Computes reference texts with a network, and how far a right computation may be off in each
    row.

    Two correct computations may add in different orders and so round differently, and layers
    amplify the difference. The size of the difference depends on the row: even a small change moves
    the logits of some rows by 1 or more. The limits are therefore measured by computing each row
    three times. The reference is computed by eager attention. The second pass uses sdpa if the
    network has it (`fused`), else eager attention with disturbed embeddings. The third pass uses
    eager attention with disturbed embeddings too, but with other random numbers. Disturbed
    embeddings are off by up to one unit in the last place.

    The limit of a row is a factor times the largest of three differences: the largest difference of
    the row from its reference in the other two passes, the same difference of the median row of its
    text, and a floor. The limit is at most the median absolute logit. If a row moved more than
    UNSTABLE times as far as the median row, however, it is not compared: its limit is infinite.

    `smooth` tells whether rounding moves no row far. This is so if the dtype is float32, or if no
    reference pass has chosen anything by its score.
    """

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype, fused: bool) -> None:
        self._network = network
        self._dtype = dtype
        self._ways = [("sdpa", 0) if fused else ("eager", 2), ("eager", 1)]
        self.smooth = True

    def of(self, tokens: Sequence[int], positions: Sequence[int]) -> ReferenceText:
        """Return a reference text: the logits and the limits at some of its positions."""
        with TopKWatch() as choosing:
            rows = self._rows(tokens, positions, "eager", 0)
        self.smooth &= self._dtype == torch.float32 or not choosing.seen
        logits = dict(zip(positions, rows.unbind(), strict=True))
        return ReferenceText(tuple(tokens), logits, self._limits(tokens, logits))

    def _limits(
        self, tokens: Sequence[int], logits: Mapping[int, torch.Tensor]
    ) -> dict[int, float]:
        """Return for each position how far a correct row may be off; infinity if the row is not
        compared.
        """
        unit = torch.stack(list(logits.values())).float().abs().median().item()
        least = FLOOR * torch.finfo(self._dtype).eps * unit
        moved = dict.fromkeys(logits, least)
        for way, seed in self._ways:
            rows = self._rows(tokens, list(logits), way, seed)
            for position, row in zip(logits, rows, strict=True):
                moved[position] = max(moved[position], _largest(logits[position], row))
        middle = median(moved.values())
        factor = SUMS if self._dtype == torch.float32 else FACTOR
        return {
            position: min(unit, factor * max(far, middle))
            if far <= UNSTABLE * middle
            else torch.inf
            for position, far in moved.items()
        }

    def _rows(
        self, tokens: Sequence[int], positions: Sequence[int], way: str, seed: int
    ) -> torch.Tensor:
        """Feed a text in one plain pass, with disturbed embeddings if `seed` is not 0, and return
        its logits at some positions, [positions, vocab]. `way` is the name of an implementation of
        attention in transformers.
        """
        disturbing = _disturbed(self._network, seed) if seed else nullcontext()
        with _attending(self._network, way), disturbing:
            logits: torch.Tensor = self._network(
                input_ids=torch.tensor([tokens], device=self._network.device),
                use_cache=False,
                logits_to_keep=torch.tensor(positions, device=self._network.device),
            ).logits[0]
        return logits


class TopKWatch(TorchDispatchMode):
    """Watches for operations that choose by scores; `seen` is whether one ran within the scope."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note whether an operation chooses by scores, and run it. Torch calls this method for each
        operation.
        """
        self.seen |= func in CHOICES
        return func(*args, **(kwargs or {}))


@contextmanager
def _attending(network: PreTrainedModel, way: str) -> Iterator[None]:
    """Make a network use one of transformers' own implementations of attention within the scope."""
    before = network.config._attn_implementation
    network.set_attn_implementation(way)
    try:
        yield
    finally:
        network.set_attn_implementation(before)


@contextmanager
def _disturbed(network: PreTrainedModel, seed: int) -> Iterator[None]:
    """Change embeddings at random by up to one unit of rounding within the scope."""
    random_numbers = torch.Generator().manual_seed(seed)

    def disturb(_: Any, __: Any, embedded: torch.Tensor) -> torch.Tensor:
        noise = 2 * torch.rand(embedded.shape, generator=random_numbers) - 1
        factors = 1 + torch.finfo(embedded.dtype).eps * noise.to(embedded.device)
        return (embedded.float() * factors).to(embedded.dtype)

    hook = network.get_input_embeddings().register_forward_hook(disturb)
    try:
        yield
    finally:
        hook.remove()


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest absolute difference of two rows; infinity if it is not a number."""
    largest = (one.float() - other.float()).abs().max()
    return largest.item() if largest.isfinite() else torch.inf
