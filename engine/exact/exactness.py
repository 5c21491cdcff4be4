"""What a model promises here: the right logits, and whether they are batch-invariant.

Found out at start by trying, not by a list of models: kernels differ by processor, dtype and
thread count. What is right is what the network computed before anything of it was replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tandem.engine.cache.pages import PageTable, page_aligned
from tandem.engine.exact.trial import MARGIN, Trial
from tandem.engine.model.configuration import SERVED_MODELS
from tandem.engine.model.load import HFModel
from tandem.engine.model.reference import text_length
from tandem.engine.model.rounding import Difference, typical_difference
from tandem.engine.model_runner import ModelRunner
from tandem.protos.errors import Unusable
from tandem.protos.types import EXACT

TRIAL_RANGES = 3


@dataclass(frozen=True, slots=True)
class Exactness:
    """`problem`: why a text may depend on the rest of the batch, None if it does not; `wrong`: what
    is wrong with the model's logits, None if nothing is.
    """

    problem: str | None
    wrong: str | None = None

    def __str__(self) -> str:
        return EXACT if self.problem is None else f"exact unavailable: {self.problem}"


@torch.inference_mode()
def self_test(forward: ModelRunner, name: str, strict: bool = True) -> Exactness:
    """Try a model; raises Unusable if it cannot be run, or, where that is to be `strict`, if it
    does not compute what it did as it was loaded, but for rounding: by itself, in a batch, or in
    trees.
    """
    kind, reference = forward.model.kind, forward.model.reference
    assert reference.main.logits, "a model is tried before its reference is released"
    with _tables(forward) as tables:
        trial = Trial(forward, reference, tables)
        try:
            off = trial.run()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, AttributeError, TypeError, IndexError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            problem = f"{kind} failed its first pass ({reason})"
            raise Unusable(f"{name} cannot be served: {problem}; {SERVED_MODELS}") from error
        wrong = _wrong(kind, trial.groups, reference.smooth)
    if wrong and strict:
        raise Unusable(f"{name} fails the self-test: {wrong}; self_test=warn serves it anyway")
    if wrong:
        return Exactness("it fails the self-test", wrong)
    if forward.batch_variant:
        return Exactness(f"{forward.batch_variant} rounds by the number of rows")
    if not forward.exact:
        return Exactness("switched off")
    if differing := int(off.count_nonzero()):
        return Exactness(f"{differing} of {len(off)} rows differ, by up to {off.max().item():.2g}")
    return Exactness(None)


def _wrong(kind: str, groups: dict[str, list[Difference]], smooth: bool) -> str | None:
    """What is wrong with the logits of a trial; None if nothing is."""
    worst, how = max((typical_difference(each, smooth), how) for how, each in groups.items())
    if worst.share <= 1:
        return None
    explained = f"rounding explains {worst.limit:.2g}"
    return f"the logits of {kind} differ by {worst.off:.2g} {how}; {explained}"


def positions_tried(model: HFModel) -> int:
    """How many cached tokens a self-test needs space for."""
    return TRIAL_RANGES * page_aligned(_longest(model))


def _longest(model: HFModel) -> int:
    return text_length(model.context_length) + MARGIN


@contextmanager
def _tables(forward: ModelRunner) -> Iterator[list[PageTable]]:
    """KV ranges for three sessions."""
    allocated = [forward.pool.allocate(_longest(forward.model)) for _ in range(TRIAL_RANGES)]
    tables = [table for table in allocated if table]
    try:
        if len(tables) < TRIAL_RANGES:
            needed = positions_tried(forward.model)
            raise Unusable(f"the self-test needs space for {needed} cached tokens")
        yield tables
    finally:
        for table in tables:
            forward.pool.release(table)
