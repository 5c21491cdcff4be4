"""The many-session forward pass against plain passes of the same model."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.forward import Forward, self_test
from engine.model import load
from engine.plan import Segment
from protos import tree
from protos.errors import Unusable
from tests.families import REFUSED, SERVED

MakeModel = Callable[[str, int], Path]


def random_tree(rng: random.Random, nodes: int) -> tuple[int, ...]:
    return tuple(rng.randrange(-1, node) for node in range(nodes))


def path_to(parents: tuple[int, ...], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@pytest.mark.parametrize("family", [*SERVED, "qwen2_window"])
@torch.inference_mode()
def test_every_row_equals_a_plain_pass_over_its_own_path(
    family: str, make_model: MakeModel
) -> None:
    """Chains, trees, prefill, compaction and churn of six sessions, mixed at random."""
    folder = make_model(family, 0)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    forward = Forward(load(folder), slots=6, context_length=200)
    rng = random.Random(1)
    held: dict[int, list[int]] = {forward.cache.take(): [] for _ in range(6)}
    worst = 0.0
    for _ in range(25):
        chosen = rng.sample(sorted(held), rng.randint(1, 6))
        segments = []
        for slot in chosen:
            if len(held[slot]) > 150:
                held[slot] = held[slot][: rng.randint(0, 100)]  # a rollback
            fresh, nodes = rng.choice([1, 2, 70]), rng.choice([0, 1, 5, 12])
            tokens = tuple(rng.randrange(4096) for _ in range(fresh + nodes))
            parents = tree.hang(fresh, random_tree(rng, nodes))
            segments.append(Segment(slot, len(held[slot]), tokens, parents, nodes + 1))
        for segment, rows in zip(segments, forward(segments), strict=True):
            first = len(segment.tokens) - segment.wanted
            for row in rng.sample(range(segment.wanted), min(3, segment.wanted)):
                ids = [segment.tokens[n] for n in path_to(segment.parents, first + row)]
                logits = plain(torch.tensor([held[segment.slot] + ids]), use_cache=False).logits[
                    0, -1
                ]
                worst = max(worst, (logits - rows[row]).abs().max().item())
            path = path_to(segment.parents, rng.randrange(first, len(segment.tokens)))
            forward.cache.compact(segment.slot, segment.context, path)
            held[segment.slot] += [segment.tokens[n] for n in path]
    assert worst <= 1e-4


@pytest.mark.parametrize("family", SERVED)
@torch.inference_mode()
def test_a_row_does_not_depend_on_its_company(family: str, make_model: MakeModel) -> None:
    """Bit for bit: alone and a token at a time, or drafted beside others and prefilled in one
    piece.
    """
    forward = Forward(load(make_model(family, 0)), slots=3, context_length=200)
    rng = random.Random(2)
    stream = [rng.randrange(4096) for _ in range(150)]
    slots = [forward.cache.take() for _ in range(3)]
    alone = {}
    for place, token in enumerate(stream):
        (rows,) = forward([Segment(slots[0], place, (token,), (-1,), 1)])
        alone[place] = rows[0]
    place = 0
    while place < len(stream):
        count = min(rng.choice([1, 2, 3, 9, 40]), len(stream) - place)
        siblings = rng.randint(0, 6)
        tokens = (*stream[place : place + count], *(rng.randrange(4096) for _ in range(siblings)))
        parents = tree.chain(count) + tuple(rng.randrange(-1, count) for _ in range(siblings))
        other = tuple(rng.randrange(4096) for _ in range(rng.choice([1, 5, 33])))
        segments = [
            Segment(slots[1], 0, other, tree.chain(len(other)), 1),
            Segment(slots[2], place, tokens, parents, len(tokens)),
        ]
        rng.shuffle(segments)
        rows = dict(zip((s.slot for s in segments), forward(segments), strict=True))[slots[2]]
        for offset in range(count):
            assert torch.equal(rows[offset], alone[place + offset])
        place += count


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_would_answer_garbage_is_refused_by_name(
    family: str, make_model: MakeModel
) -> None:
    with pytest.raises(Unusable) as refusal:
        self_test(Forward(load(make_model(family, 0)), 2, 64), family)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) > 20


def test_the_self_test_notices_a_wrong_mask(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeing all earlier rows instead of one's ancestors is the mistake that a tree mask guards
    against.
    """
    everything = lambda parents, trunk: torch.ones(len(parents), len(parents)).tril().bool()[trunk:]  # noqa: E731
    monkeypatch.setattr("engine.plan._side", everything)
    with pytest.raises(Unusable, match="differ by"):
        self_test(Forward(load(make_model("llama", 0)), 2, 64), "llama")


def test_an_unknown_model_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=f"{tmp_path} is not a model directory"):
        load(tmp_path)
