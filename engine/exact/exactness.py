"""What a model promises here: the right logits, and whether they are the same in any company.

Found out at start by trying, not by a list of models: kernels differ by processor, dtype and
thread count. What is right is what the network said before anything of it was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from engine.cache.rooms import Room, blocks
from engine.exact.trial import MARGIN, Trial
from engine.model.load import INSTEAD
from engine.model.original import Original, length, typical
from engine.port import ModelFacts, ModelRunner
from protos.errors import Unusable
from protos.types import EXACT

ROOMS = 3


@dataclass(frozen=True, slots=True)
class Exactness:
    """`problem`: why the rows depend on their company, None if they do not."""

    problem: str | None

    def __str__(self) -> str:
        return EXACT if self.problem is None else f"exact unavailable: {self.problem}"


@torch.inference_mode()
def self_test(forward: ModelRunner, name: str) -> Exactness:
    """Try a model; raises Unusable if it does not compute what it did as it was loaded, but for
    rounding: by itself, in company, or in trees.
    """
    kind, original = forward.model.kind, forward.model.original
    assert original.main.logits, "a model is tried before its original is released"
    with _rooms(forward) as rooms:
        trial = Trial(forward, original, rooms)
        try:
            off = trial.run()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AttributeError, TypeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            wrong: str | None = f"{kind} failed its first pass ({reason})"
        else:
            wrong = _wrong(kind, trial.groups, original)
    if wrong:
        raise Unusable(f"{name} cannot be served: {wrong}; {INSTEAD}")
    if forward.uneven:
        return Exactness(f"{forward.uneven} rounds by the number of rows")
    if not forward.exact:
        return Exactness("switched off")
    if differing := int(off.count_nonzero()):
        return Exactness(f"{differing} of {len(off)} rows differ, by up to {off.max().item():.2g}")
    return Exactness(None)


def _wrong(kind: str, groups: dict[str, list[float]], original: Original) -> str | None:
    """What is wrong with the logits of a trial; None if nothing is."""
    off, how = max((typical(each, original.smooth), how) for how, each in groups.items())
    if off <= original.limit:
        return None
    return f"the logits of {kind} differ by {off:.2g} {how}; rounding explains {original.limit:.2g}"


def positions_tried(model: ModelFacts) -> int:
    """How many cached tokens a self-test needs room for."""
    return ROOMS * blocks(_longest(model))


def _longest(model: ModelFacts) -> int:
    return length(model.context_length) + MARGIN


@contextmanager
def _rooms(forward: ModelRunner) -> Iterator[list[Room]]:
    """Rooms for three sessions."""
    taken = [forward.pool.take(_longest(forward.model)) for _ in range(ROOMS)]
    rooms = [room for room in taken if room]
    try:
        if len(rooms) < ROOMS:
            needed = positions_tried(forward.model)
            raise Unusable(f"the self-test needs room for {needed} cached tokens")
        yield rooms
    finally:
        for room in rooms:
            forward.pool.give_back(room)
