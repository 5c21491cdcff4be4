"""Find out whether a model computes the right logits, and whether its logits are batch-invariant.

The service tests every model at start instead of keeping a list of tested models, because kernels
differ by processor, dtype and thread count. The right logits are those that the network computed
before any of its layers was replaced.
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

TRIAL_TABLES = 3  # page tables that a self-test allocates


@dataclass(frozen=True, slots=True)
class Exactness:
    """The result of a self-test. `problem` says why the logits of a text may depend on the other
    texts of its batch; it is None if the logits are batch-invariant. `wrong` says what is wrong
    with the model's logits; it is None if nothing is wrong.
    """

    problem: str | None
    wrong: str | None = None

    def __str__(self) -> str:
        return EXACT if self.problem is None else f"exact unavailable: {self.problem}"


@torch.inference_mode()
def self_test(forward: ModelRunner, name: str, strict: bool = True) -> Exactness:
    """Test a model, and return whether its logits are exact. Raises Unusable if the model cannot be
    run. If `strict`, wrong logits also raise Unusable. Logits are wrong if they differ from the
    reference logits by more than rounding explains. The test feeds texts alone, in a batch and in
    trees.
    """
    kind, reference = forward.model.kind, forward.model.reference
    assert reference.main.logits, "the self-test runs before the reference logits are released"
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
        return Exactness(f"the rounding of {forward.batch_variant} depends on the number of rows")
    if not forward.exact:
        return Exactness("switched off")
    if differing := int(off.count_nonzero()):
        return Exactness(f"{differing} of {len(off)} rows differ, by up to {off.max().item():.2g}")
    return Exactness(None)


def _wrong(kind: str, groups: dict[str, list[Difference]], smooth: bool) -> str | None:
    """Return what is wrong with the logits that a trial computed, or None if nothing is wrong."""
    worst, how = max((typical_difference(each, smooth), how) for how, each in groups.items())
    if worst.share <= 1:
        return None
    explained = f"rounding explains {worst.limit:.2g}"
    return f"the logits of {kind} differ by {worst.off:.2g} {how}; {explained}"


def positions_tried(model: HFModel) -> int:
    """Return how many positions of the KV cache a self-test of this model needs."""
    return TRIAL_TABLES * page_aligned(_longest(model))


def _longest(model: HFModel) -> int:
    """Return the number of positions in the longest page table of a self-test."""
    return text_length(model.context_length) + MARGIN


@contextmanager
def _tables(forward: ModelRunner) -> Iterator[list[PageTable]]:
    """Inside this context, hold TRIAL_TABLES page tables. Raises Unusable if there is no space for
    these tables.
    """
    allocated = [forward.pool.allocate(_longest(forward.model)) for _ in range(TRIAL_TABLES)]
    tables = [table for table in allocated if table]
    try:
        if len(tables) < TRIAL_TABLES:
            needed = positions_tried(forward.model)
            raise Unusable(f"the self-test needs space for {needed} cached tokens")
        yield tables
    finally:
        for table in tables:
            forward.pool.release(table)
