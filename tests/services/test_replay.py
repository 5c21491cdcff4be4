"""Passes that are captured once and replayed, as on a CUDA device, on a CPU: every replay gives
what the pass itself gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tandem.benchmarks.figures.emulation import emulated
from tandem.engine.forward.cuda.graphs import CudaGraphs
from tandem.engine.forward.cuda.table import padding_passes
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tests.services import replay
from tests.talks import some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS = 8192
LENGTH = 300


@pytest.fixture(autouse=True)
def _spelled_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    replay.emulate(monkeypatch)
    with emulated():
        yield


def forwards(folder: Path, exact: bool) -> tuple[HFRunner, HFRunner]:
    """One that runs every pass, and one that replays them."""
    plain, replayed = (
        HFRunner(load(folder), POSITIONS, exact, AttentionBackend.ROWS) for _ in range(2)
    )
    replayed._runner = CudaGraphs(replayed._run, replayed.model.device, replay.capture)
    return plain, replayed


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma", "qwen2", "mistral_wide"])
def test_a_replayed_pass_gives_what_the_pass_itself_gives(
    family: str, exact: bool, make_model: MakeModel
) -> None:
    """Texts of 300 tokens in chunks and trees, of one to four sessions: across every cut."""
    both = forwards(make_model(family, 0), exact)
    pairs = list(zip(*(talks(forward, 4) for forward in both), strict=True))
    rng, passes = random.Random(family), 0
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
        passes += 1
    runner = both[1]._runner
    assert isinstance(runner, CudaGraphs) and runner.problem is None
    recordings = len(runner._captured)
    assert 2 <= recordings < passes, "most passes are replayed"


@pytest.mark.parametrize("exact", [True, False])
def test_all_passes_that_there_are_are_captured_at_start(
    exact: bool, make_model: MakeModel
) -> None:
    """And no other: nothing is captured while serving, and nothing is kept in vain."""
    plain, replayed = forwards(make_model("llama", 0), exact)
    runner = replayed._runner
    assert isinstance(runner, CudaGraphs)
    replayed.sizes = plain.sizes = (16, 32)
    runner(padding_passes(POSITIONS, True, (64,))[0])  # tried, and not to be used
    assert plain.capture_passes() == 0
    captured = replayed.capture_passes()
    known = dict(runner._captured)
    assert captured == len(known) == (8 if exact else 10)
    assert {form.rows for form in known} == {16, 32}
    rng = random.Random(5)
    both = list(zip(*(talks(forward, 3) for forward in (plain, replayed)), strict=True))
    for _ in range(12):
        fed = []
        for one, other in rng.sample(both, rng.randint(1, 3)):
            count = rng.choice([0, 3, 9])
            head, draft, parents = (
                some_tokens(rng, 20),
                some_tokens(rng, count),
                some_tree(rng, count),
            )
            fed.append([talk.segment(head, draft, parents) for talk in (one, other)])
        logits = [
            forward(list(segments))
            for forward, segments in zip((plain, replayed), zip(*fed, strict=True), strict=True)
        ]
        assert all(map(torch.equal, *logits))
    assert runner._captured == known
