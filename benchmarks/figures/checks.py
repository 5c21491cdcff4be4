"""Check the engine before its steps are timed. A session's logits must not depend on other
sessions. Passes that are replayed must give exactly the same logits as passes that are launched
operation by operation. The logits of chains and trees must equal those of transformers, up to
rounding.

A check that fails raises Unusable. This module does not measure times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from tandem.engine.cache.pages import PageTable, page_aligned
from tandem.engine.exact.exactness import positions_tried, self_test
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel
from tandem.engine.model.rounding import (
    Difference,
    ReferenceText,
    ReferenceTexts,
    typical_difference,
)
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable

SESSIONS, LONGEST = 4, 320  # number of sessions, and maximum tokens of each session
# possible numbers of new text tokens in a step; the largest exceeds `TAIL` of the backend ROWS
HEADS = (1, 5, 90, 130)
NODES = (0, 0, 3, 16)  # possible numbers of draft nodes after the new text tokens
STEPS = 8


@dataclass(frozen=True, slots=True)
class Fed:
    """The input of a session: the last `head` tokens of its text, then a tree of proposals."""

    session: int
    text: tuple[int, ...]
    head: int
    draft: tuple[int, ...]
    parents: tuple[int, ...]  # parent index of every fed token

    @property
    def context(self) -> int:
        """The number of tokens that the session has cached."""
        return len(self.text) - self.head

    @property
    def tokens(self) -> tuple[int, ...]:
        """All fed tokens: those of the text, and then the proposals."""
        return self.text[self.context :] + self.draft


def exact(forward: HFRunner, name: str) -> None:
    """Check with the engine's self-test that logits are correct and batch-invariant."""
    if problem := self_test(forward, name).problem:
        raise Unusable(f"a check failed: not exact, {problem}")


def replays(launched: HFRunner, replayed: HFRunner) -> None:
    """Check that replayed passes give exactly the same logits as passes that are launched operation
    by operation, and that every pass can be replayed.
    """
    with _tables(launched) as ours, _tables(replayed) as theirs:
        for step in walk(launched.model):
            expected, given = _feed(launched, ours, step), _feed(replayed, theirs, step)
            if not all(map(torch.equal, expected, given)):
                raise Unusable(
                    "a check failed: a replayed pass gives other logits than a launched pass"
                )
    if replayed.problem:
        raise Unusable(f"a check failed: {replayed.problem}")


def right(forwards: Mapping[str, HFRunner], network: PreTrainedModel) -> dict[str, float]:
    """Check that the logits of chains and trees are, up to rounding, those that transformers
    computes for each path. Returns, for each system, the typical difference between a row of its
    logits and transformers' logits. All systems must run the same model, because they are all
    compared with the same logits.
    """
    model = next(iter(forwards.values())).model
    texts = ReferenceTexts(network, model.dtype, fused=network._supports_sdpa)
    differences: dict[str, list[Difference]] = {system: [] for system in forwards}
    with ExitStack() as stack:
        tables = {name: stack.enter_context(_tables(each)) for name, each in forwards.items()}
        for step in walk(model):
            references = [_references(texts, fed) for fed in step]
            for system, forward in forwards.items():
                logits = _feed(forward, tables[system], step)
                for fed, paths, rows in zip(step, references, logits, strict=True):
                    differences[system] += _differences(paths, fed, rows)
    worst = {name: typical_difference(each, texts.smooth) for name, each in differences.items()}
    for system, (share, off, limit) in worst.items():
        if share > 1:
            problem = (
                f"logits differ from transformers' by {off:.2g};"
                f" rounding explains at most {limit:.2g}"
            )
            raise Unusable(f"a check failed: {system}: {problem}")
    return {system: each.off for system, each in worst.items()}


def walk(model: HFModel) -> Iterator[list[Fed]]:
    """Yield at most STEPS steps. Each step feeds a random set of sessions, whose texts grow to at
    most LONGEST tokens.
    """
    rng, longest = random.Random(0), min(LONGEST, model.context_length)
    texts: list[tuple[int, ...]] = [()] * SESSIONS

    def some(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(model.token_count), k=count))

    for _ in range(STEPS):
        step = []
        for session in rng.sample(range(SESSIONS), rng.randint(1, SESSIONS)):
            head, nodes = rng.choice(HEADS), rng.choice(NODES)
            if len(texts[session]) + head + nodes <= longest:
                texts[session] += some(head)
                parents = tree.hang(head, [rng.randrange(-1, node) for node in range(nodes)])
                step.append(Fed(session, texts[session], head, some(nodes), parents))
        if step:
            yield step


def room_for(model: HFModel) -> int:
    """Return the size of the KV cache that the checks need, in tokens."""
    return max(SESSIONS * page_aligned(LONGEST), positions_tried(model))


@contextmanager
def _tables(forward: HFRunner) -> Iterator[list[PageTable]]:
    allocated = [forward.pool.allocate(LONGEST) for _ in range(SESSIONS)]
    tables = [table for table in allocated if table]
    assert len(tables) == SESSIONS, "the pool has room for all"
    yield tables
    for table in tables:
        forward.pool.release(table)


def _feed(
    forward: HFRunner, tables: Sequence[PageTable], step: Sequence[Fed]
) -> list[torch.Tensor]:
    """Run a step, and return its logits, [tokens, vocab] for each session. Later passes do not
    change the returned tensors.
    """
    return forward(
        [
            Segment(tables[fed.session], fed.context, fed.tokens, fed.parents, len(fed.tokens))
            for fed in step
        ]
    )


@torch.inference_mode()
def _references(texts: ReferenceTexts, fed: Fed) -> list[tuple[list[int], ReferenceText]]:
    """Run transformers on each path of a tree. Returns the nodes of each path and its reference
    logits.
    """
    found = []
    for leaf in set(range(len(fed.parents))) - set(fed.parents):
        path = tree.path(fed.parents, leaf)
        tokens = [*fed.text[: fed.context], *(fed.tokens[node] for node in path)]
        found.append((path, texts.of(tokens, range(fed.context, len(tokens)))))
    return found


def _differences(
    paths: Sequence[tuple[list[int], ReferenceText]], fed: Fed, logits: torch.Tensor
) -> list[Difference]:
    """Return how much each row of logits differs from the reference logits."""
    off: dict[int, Difference] = {}
    for path, text in paths:
        places = range(fed.context, len(text.tokens))
        off |= zip(path, text.differences(fed.context, logits[path], places), strict=True)
    return list(off.values())
