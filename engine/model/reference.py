"""What a network computes as transformers loaded it, before anything of it is replaced: the logits
of three texts at some places, and how far rounding alone may carry others from them.

Knows nothing of how texts are fed to us.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from tandem.engine.forward import attention
from tandem.engine.forward.cuda.rows import STEP
from tandem.engine.model.probe import ProbeResult
from tandem.protos.errors import Unusable

LEAD = 256  # tokens of a prompt: fed whole it keeps several threads busy
STREAM = 48  # tokens after it
BRANCH = 8  # tokens of a text that leaves the first one just before its end
OTHER = 160  # tokens of a text that has nothing to do with it
SPACING = 4  # tokens from one known row of the stream to the next
SPREAD = 16  # tokens from one known row to the next, in the prompt
FACTOR = 3.0  # from the difference between two ways to attend to what is called wrong
SUMS = 10.0  # the same in float32, where the order of sums in linear layers rounds as much
FLOOR, CHOOSING = 6, 96  # units of rounding of a logit: no two ways are taken for closer; where
# experts are chosen, a short context has few rows to take the middle of
ALONE = 128  # the same where a network has one way only; those of wide and deep ones differ by half
ROUNDED = 4.0  # logits, where all is rounded to 8 bits; those of two texts differ by 9
ATEN = torch.ops.aten
CHOICES = {ATEN.topk.default, ATEN.sort.default, ATEN.argmax.default, ATEN.max.dim}


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """Tokens, and the logits at some of their places, [vocab] each, as the network gave them."""

    tokens: tuple[int, ...]
    logits: dict[int, torch.Tensor]

    def differences(self, start: int, rows: torch.Tensor) -> dict[int, float]:
        """By place, the largest from what is known to `rows`, [rows, vocab], of the tokens from
        `start` on; infinite where they are no numbers.
        """
        known = [place for place in self.logits if start <= place < start + len(rows)]
        return {place: _largest(self.logits[place], rows[place - start]) for place in known}


@dataclass(frozen=True, slots=True)
class ReferenceLogits:
    """Three texts: `side` is `main` but for its last `BRANCH` tokens, `other` is another session's.
    `limit`: how far the typical row of a group may be off.
    """

    main: ReferenceText
    side: ReferenceText
    other: ReferenceText
    limit: float
    smooth: bool  # rounding moves no row far

    @property
    def lead(self) -> int:
        """How many tokens of the main text are a prompt; the rest is a stream."""
        return max(len(self.main.tokens) - STREAM, 0)

    @property
    def fork(self) -> int:
        """How many tokens the first two texts have in common."""
        return max(len(self.main.tokens) - BRANCH, 0)

    def release(self) -> None:
        """Forget the logits."""
        for text in (self.main, self.side, self.other):
            text.logits.clear()


def text_length(context: int) -> int:
    """Tokens of the main text of a model with such a context."""
    return min(LEAD + STREAM, context)


def typical_difference(differences: Sequence[float], smooth: bool) -> float:
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


@torch.inference_mode()
def reference_logits(
    network: PreTrainedModel, found: ProbeResult, dtype: torch.dtype, rounded: bool
) -> ReferenceLogits:
    """What a network computes of texts that are as long as it allows. `rounded`: its weights are
    going to be rounded to 8 bits. Raises Unusable with words that follow the name of its class.
    """
    rng, longest = random.Random(0), text_length(found.context_length)
    some = partial(rng.choices, range(found.vocab_size))
    tokens, other = some(k=longest), some(k=min(OTHER, longest))
    fork = max(longest - BRANCH, 0)
    branch = list(range(fork, longest))
    known = sorted({*_places(longest), *range(longest)[-STREAM::SPACING], *branch})
    try:
        with _attending(network, "eager"), TopKWatch() as choosing:
            main = _text(network, tokens, known)
            side = _text(network, tokens[:fork] + some(k=len(branch)), branch)
            beside = _text(network, other, _places(len(other)))
        again = main
        if network._supports_sdpa and all(layer.fused for layer in found.layers):
            with _attending(network, "sdpa"):
                again = _text(network, tokens, known)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unusable(f"fails a plain pass ({reason})") from error
    smooth = not rounded and (dtype == torch.float32 or not choosing.seen)
    return ReferenceLogits(main, side, beside, _limit(main, again, dtype, smooth, rounded), smooth)


def _limit(
    main: ReferenceText, again: ReferenceText, dtype: torch.dtype, smooth: bool, rounded: bool
) -> float:
    """How far rounding alone may carry a row: some times as far as the network's own two ways to
    attend differ on the same text, or a floor if it has only one.

    Two right computations differ by rounding in another order, and layers make more of it, as much
    of that between our way and eager as of that between sdpa and eager. So a few times the latter
    is far after what chance does. What differs by a whole logit is never called rounding.
    """
    unit = torch.stack(list(main.logits.values())).float().abs().median().item()
    if rounded:
        return ROUNDED * unit
    units = ALONE if again is main else FLOOR if smooth else CHOOSING
    least = units * torch.finfo(dtype).eps * unit
    differences = [_largest(again.logits[place], row) for place, row in main.logits.items()]
    factor = SUMS if dtype == torch.float32 else FACTOR
    return min(unit, factor * max(least, typical_difference(differences, smooth)))


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


def _places(count: int) -> list[int]:
    """Places all over a text, and on either side of every cut: of blocks, of tails, of prefixes."""
    return [
        place for place in range(count) if place % STEP in (0, 1, STEP - 1) or place % SPREAD == 4
    ]


def _text(network: PreTrainedModel, tokens: Sequence[int], places: Sequence[int]) -> ReferenceText:
    """A plain pass over a text; its logits at some places."""
    logits = network(
        input_ids=torch.tensor([tokens], device=network.device),
        use_cache=False,
        logits_to_keep=torch.tensor(places, device=network.device),
    ).logits[0]
    return ReferenceText(tuple(tokens), dict(zip(places, logits.unbind(), strict=True)))


@contextmanager
def _attending(network: PreTrainedModel, way: str) -> Iterator[None]:
    """Attend in one of transformers' own ways within the scope, and in ours after it."""
    network.set_attn_implementation(way)
    try:
        yield
    finally:
        network.set_attn_implementation(attention.NAME)


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    largest = (one.float() - other.float()).abs().max()
    return largest.item() if largest.isfinite() else torch.inf
