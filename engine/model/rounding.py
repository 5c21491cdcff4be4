"""The logits of a network as transformers loaded it, and how far rounding alone may carry each row
from them.
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

FACTOR = 4.0  # from how far rounding was seen to move a row to what is called wrong; right models
# of the tests were within 2.9, mistakes that are larger than rounding beyond 6
SUMS = 10.0  # the same in float32, where the order of sums in linear layers rounds as much: right
# ones were within 5.7, mistakes beyond 1,400
FLOOR = 6  # units of rounding of a logit: no two ways are taken for closer
UNSTABLE = 4.0  # times as far as the middle row: a row that rounding moves so far says nothing
ATEN = torch.ops.aten
CHOICES = {ATEN.topk.default, ATEN.sort.default, ATEN.argmax.default, ATEN.max.dim}


class Difference(NamedTuple):
    """How far a row is off from a reference; `share` of what rounding explains."""

    share: float
    off: float
    limit: float


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """Tokens, the logits at some of their places, [vocab] each, as the network gave them, and how
    far right computations may be off there, infinitely at a place that says nothing.
    """

    tokens: tuple[int, ...]
    logits: dict[int, torch.Tensor]
    limits: dict[int, float]

    def differences(self, start: int, rows: torch.Tensor, places: range) -> list[Difference]:
        """Of what is known at these places, to `rows`, [rows, vocab], of the tokens from `start`
        on; infinite where they are no numbers.
        """
        return [
            self._difference(place, rows[place - start])
            for place in self.logits
            if place in places and start <= place < start + len(rows)
        ]

    def _difference(self, place: int, row: torch.Tensor) -> Difference:
        off, limit = _largest(self.logits[place], row), self.limits[place]
        share = off / max(limit, sys.float_info.min) if off < torch.inf else off
        return Difference(share, off, limit)


def typical_difference(differences: Sequence[Difference], smooth: bool) -> Difference:
    """How far a group of rows is off: the worst of them if rounding moves none far, else
    the middle one.

    A network that chooses experts is not smooth in half precision: two scores may be as close as
    rounding, which then sends a token to another expert, and its row far away; that is right too.
    It happens to single tokens at random, while a mistake is made with every row after some place,
    or with every row that is fed in some way. So the middle one of rows that have both in common is
    far off after a mistake, and not by chance. In float32 scores are never as close.
    """
    ordered = sorted(differences)
    return ordered[-1] if smooth else ordered[(len(ordered) - 1) // 2]


class ReferenceTexts:
    """Computes reference texts with a network, and how far a right computation may be off in each
    row.

    Two right computations round in another order, and layers amplify the difference. How much
    depends on the row: some rows react to any change with whole logits. So each row is computed
    three times: by eager attention, by sdpa if the network has it (`fused`), and with embeddings
    that are off by one unit in the last place. The limit of a row is a factor times the largest
    difference between these, or times that of the median row of its text, or times a floor,
    whichever is largest. It is never above the median absolute logit.

    `smooth`: no pass has chosen anything by its score, so that rounding moves no row far.
    """

    def __init__(self, network: PreTrainedModel, dtype: torch.dtype, fused: bool) -> None:
        self._network, self._dtype = network, dtype
        self._ways = [("sdpa", 0) if fused else ("eager", 2), ("eager", 1)]
        self.smooth = True

    def of(self, tokens: Sequence[int], places: Sequence[int]) -> ReferenceText:
        """A text, with what is known of some of its places."""
        with TopKWatch() as choosing:
            rows = self._rows(tokens, places, "eager", 0)
        self.smooth &= self._dtype == torch.float32 or not choosing.seen
        logits = dict(zip(places, rows.unbind(), strict=True))
        return ReferenceText(tuple(tokens), logits, self._limits(tokens, logits))

    def _limits(
        self, tokens: Sequence[int], logits: Mapping[int, torch.Tensor]
    ) -> dict[int, float]:
        """By place, how far a right row may be off."""
        unit = torch.stack(list(logits.values())).float().abs().median().item()
        least = FLOOR * torch.finfo(self._dtype).eps * unit
        moved = dict.fromkeys(logits, least)
        for way, seed in self._ways:
            rows = self._rows(tokens, list(logits), way, seed)
            for place, row in zip(logits, rows, strict=True):
                moved[place] = max(moved[place], _largest(logits[place], row))
        middle = median(moved.values())
        factor = SUMS if self._dtype == torch.float32 else FACTOR
        return {
            place: min(unit, factor * max(far, middle)) if far <= UNSTABLE * middle else torch.inf
            for place, far in moved.items()
        }

    def _rows(
        self, tokens: Sequence[int], places: Sequence[int], way: str, seed: int
    ) -> torch.Tensor:
        """A plain pass over a text, with disturbed embeddings if there is a seed; its logits at
        some places, [places, vocab].
        """
        disturbing = _disturbed(self._network, seed) if seed else nullcontext()
        with _attending(self._network, way), disturbing:
            logits: torch.Tensor = self._network(
                input_ids=torch.tensor([tokens], device=self._network.device),
                use_cache=False,
                logits_to_keep=torch.tensor(places, device=self._network.device),
            ).logits[0]
        return logits


class TopKWatch(TorchDispatchMode):
    """`seen`: whether something was chosen by its score within the scope."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch instead of an operation."""
        self.seen |= func in CHOICES
        return func(*args, **(kwargs or {}))


@contextmanager
def _attending(network: PreTrainedModel, way: str) -> Iterator[None]:
    """Attend in one of transformers' own ways within the scope, and as before after it."""
    before = network.config._attn_implementation
    network.set_attn_implementation(way)
    try:
        yield
    finally:
        network.set_attn_implementation(before)


@contextmanager
def _disturbed(network: PreTrainedModel, seed: int) -> Iterator[None]:
    """Within the scope embeddings are off by up to a unit of rounding, at random."""
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
    largest = (one.float() - other.float()).abs().max()
    return largest.item() if largest.isfinite() else torch.inf
