"""Passes are captured once and replayed as on a CUDA device, but on a CPU: every replay gives the
same results as the pass itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tandem.benchmarks.figures.emulation import emulated
from tandem.engine.forward.cuda.graphs import CudaGraphs
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tests.services import replay
from tests.talks import some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS = 8192
LENGTH = 160


@pytest.fixture(autouse=True)
def _spelled_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    replay.emulate(monkeypatch)
    with emulated():
        yield


def forwards(folder: Path, exact: bool) -> tuple[HFRunner, HFRunner]:
    """Return two forward passes: one runs every pass, the other replays captured ones."""
    plain, replayed = (
        HFRunner(load(folder), POSITIONS, exact, AttentionBackend.ROWS) for _ in range(2)
    )
    replayed._runner = CudaGraphs(replayed._run, replayed.model.device, replay.capture)
    return plain, replayed


@pytest.mark.parametrize(
    ("family", "exact"),
    [("llama", True), ("llama", False), ("gemma", True), ("qwen2", False)],
)
def test_a_replayed_pass_gives_what_the_pass_itself_gives(
    family: str, exact: bool, make_model: MakeModel
) -> None:
    """The texts have 160 tokens, in chunks and trees, of one to four sessions, and reach across the
    cuts of attention. Every pass is captured at start, and none while serving.
    """
    both = forwards(make_model(family, 0), exact)
    runner = both[1]._runner
    assert isinstance(runner, CudaGraphs)
    both[0].sizes = both[1].sizes = (32,)
    assert both[0].capture_passes() == 0
    assert both[1].capture_passes() == len(runner._captured) > 0
    known = dict(runner._captured)
    pairs = list(zip(*(talks(forward, 4) for forward in both), strict=True))
    rng = random.Random(family)
    while len(pairs[0][0].text) < LENGTH:
        fed = []
        for one, other in [pairs[0], *rng.sample(pairs[1:], rng.randint(0, 3))]:
            count = rng.choice([0, 0, 3, 9])
            draft, parents = some_tokens(rng, count), some_tree(rng, count)
            head = some_tokens(rng, rng.choice([1, 7, 20]))
            if len(one.text) + len(head) + count <= LENGTH + 20:
                segments = [talk.segment(head, draft, parents) for talk in (one, other)]
                fed.append(((one, other), segments, rng.randrange(len(head) + count)))
        logits = [
            forward([segments[way] for _, segments, _ in fed]) for way, forward in enumerate(both)
        ]
        for ours, theirs in zip(*logits, strict=True):
            assert torch.equal(ours, theirs)
        for both_talks, segments, node in fed:
            for talk, forward, segment in zip(both_talks, both, segments, strict=True):
                talk.commit(forward, segment, node)
    assert (runner.problem, runner._captured) == (None, known)
