"""Compute the logits of the network as transformers loaded it, and how much rounding alone may
change each row of logits.
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

# the limit of a row is this many times the change that rounding was measured to cause in the row;
# in the tests, correct models changed rows by up to 2.9 times the measured change, and faults
# changed rows by more than 6 times the measured change, unless rounding hid them
FACTOR = 4.0
# the same factor for float32. It is larger, because a different order of additions in linear layers
# changes rows about as much as the measured rounding. Correct models changed rows by up to 5.7
# times the measured change, and faults by more than 1,400 times
SUMS = 10.0
FLOOR = 6  # two computations are assumed to differ by at least this many units of rounding
# a row is not compared, and has no limit, if rounding changes it more than this many times as much
# as the median row
UNSTABLE = 4.0
ATEN = torch.ops.aten
CHOICES = {ATEN.topk.default, ATEN.sort.default, ATEN.argmax.default, ATEN.max.dim}


class Difference(NamedTuple):
    """The difference between a row of logits and its reference: `off` is its size, `limit` is the
    size that rounding explains, and `share` is `off` divided by `limit`.
    """

    share: float
    off: float
    limit: float


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """The tokens of a text, the network's logits [vocab] at some positions, and the limit at each
    of these positions: the largest difference from these logits that a correct computation may
    have. The limit is infinite at a position where rounding changes the logits too much for a
    comparison.
    """

    tokens: tuple[int, ...]
    logits: dict[int, torch.Tensor]
    limits: dict[int, float]

    def differences(self, start: int, rows: torch.Tensor, positions: range) -> list[Difference]:
        """Return the differences between `rows` [rows, vocab] and the reference logits, at those of
        `positions` that have reference logits. `rows` are the logits of the tokens from `start` on.
        A difference is infinite if a row has values that are not numbers.
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
    """Return the difference that represents a group of rows. If the network is `smooth` (rounding
    changes every row only slightly), this is the largest difference, otherwise the median.

    A mixture-of-experts network is not smooth in half precision. The scores of two experts may be
    so close that rounding sends a token to another expert. The token's row of logits then differs a
    lot from the reference, although the computation is correct. A changed choice of experts affects
    single tokens at random, while a fault affects every row after some position, or every row that
    is fed in one particular way. Each group holds the rows that are fed in one way and lie on one
    side of a position. Therefore a group's median difference is large only if there is a fault. In
    float32, the scores of two experts are never that close.
    """
    ordered = sorted(differences)
    return ordered[-1] if smooth else ordered[(len(ordered) - 1) // 2]


class ReferenceTexts:
    """Computes reference texts with a network, and measures how much a correct computation may
    differ in each row.

    Two correct computations may add numbers in different orders and therefore round differently,
    and the layers amplify the difference. How large the difference becomes depends on the row: even
    a small change of the input changes the logits of some rows by 1 or more. The limits are
    therefore measured, by computing each row three times. The first pass computes the reference,
    with eager attention. The second pass uses sdpa if the network has it (`fused`), otherwise eager
    attention with disturbed embeddings. The third pass uses eager attention with embeddings that
    are disturbed by other random numbers. Disturbed embeddings are changed by up to one unit in the
    last place.

    The limit of a row is a factor times the largest of three values: the largest difference between
    the row and its reference in the other two passes, the median of these differences over the
    text's rows, and a floor. The limit is at most the median absolute logit. However, a row that
    changed more than UNSTABLE times as much as the median row is not compared: its limit is
    infinite.

    `smooth` tells whether rounding changes every row only slightly. `smooth` is true if the dtype
    is float32, or if no operation of the reference passes selects values by their scores.
    """

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype, fused: bool) -> None:
        self._network = network
        self._dtype = dtype
        self._ways = [("sdpa", 0) if fused else ("eager", 2), ("eager", 1)]
        self.smooth = True

    def of(self, tokens: Sequence[int], positions: Sequence[int]) -> ReferenceText:
        """Compute a reference text: the logits and the limits at some positions of a text."""
        with TopKWatch() as choosing:
            rows = self._rows(tokens, positions, "eager", 0)
        self.smooth &= self._dtype == torch.float32 or not choosing.seen
        logits = dict(zip(positions, rows.unbind(), strict=True))
        return ReferenceText(tuple(tokens), logits, self._limits(tokens, logits))

    def _limits(
        self, tokens: Sequence[int], logits: Mapping[int, torch.Tensor]
    ) -> dict[int, float]:
        """Return for each position how much a correct row may differ from the reference; infinity
        if the row is not compared.
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
        """Feed a text in one ordinary forward pass, with disturbed embeddings if `seed` is not 0,
        and return its logits at some positions, [positions, vocab]. `way` is the name of one of
        transformers' attention implementations.
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
    """Detects operations that select values by their scores, such as topk; `seen` tells whether one
    ran inside this context.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note whether an operation selects values by their scores, and run it. Torch calls this
        method for every operation.
        """
        self.seen |= func in CHOICES
        return func(*args, **(kwargs or {}))


@contextmanager
def _attending(network: PreTrainedModel, way: str) -> Iterator[None]:
    """Inside this context, make a network use transformers' attention implementation `way`."""
    before = network.config._attn_implementation
    network.set_attn_implementation(way)
    try:
        yield
    finally:
        network.set_attn_implementation(before)


@contextmanager
def _disturbed(network: PreTrainedModel, seed: int) -> Iterator[None]:
    """Inside this context, change embeddings at random by up to one unit of rounding."""
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
    """Return the largest absolute difference between two rows; infinity if it is not finite."""
    largest = (one.float() - other.float()).abs().max()
    return largest.item() if largest.isfinite() else torch.inf
