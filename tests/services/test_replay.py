"""Passes that are captured once and replayed, as on a CUDA device, on a CPU: every replay gives
what the pass itself gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.forward import Backend, Forward
from engine.graphs import Graphs
from engine.model import load
from tests.services import replay
from tests.talks import some_tokens, some_tree, talks

MakeModel = Callable[[str, int], Path]
POSITIONS = 8192
LENGTH = 300


@pytest.fixture(autouse=True)
def _spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    replay.emulate(monkeypatch)


def forwards(folder: Path, exact: bool) -> tuple[Forward, Forward]:
    """One that runs every pass, and one that replays them."""
    plain, replayed = (Forward(load(folder), POSITIONS, exact, Backend.ROWS) for _ in range(2))
    replayed._runner = Graphs(replayed._run, replayed.model.device, replay.capture)
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
    assert isinstance(runner, Graphs) and runner.problem is None
    recordings = len(runner._recordings)
    assert 2 <= recordings < passes, "most passes are replayed"
