"""Exact mode: a row's logits are the same, bit for bit, whatever else is in its step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tandem.engine.cache.ranges import KVRange
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tests.families import SERVED, VOCABULARY

MakeModel = Callable[[str, int], Path]
POSITIONS, SIZE, STREAM, OTHERS = 2048, 256, 150, 5
pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def some_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))


def alone(forward: HFRunner, stream: tuple[int, ...]) -> list[torch.Tensor]:
    """The stream's logits, fed one token a step by itself."""
    kv_range = forward.pool.allocate(SIZE)
    assert kv_range
    rows = [
        forward([Segment(kv_range, place, (token,), (-1,), 1)])[0][0]
        for place, token in enumerate(stream)
    ]
    forward.pool.release(kv_range)
    return rows


def with_guesses(rng: random.Random, piece: tuple[int, ...]) -> tuple[Segment, list[int]]:
    """A piece of the stream in a tree with wrong guesses anywhere, and the path of the piece."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []

    def add(token: int, parent: int) -> None:
        tokens.append(token)
        parents.append(parent)

    for token in piece:
        for _ in range(rng.choice([0, 0, 0, 1, 3])):
            add(rng.randrange(VOCABULARY), rng.randrange(-1, len(tokens)))
        parent = path[-1] if path else -1
        path.append(len(tokens))
        add(token, parent)
    for _ in range(rng.choice([0, 0, 5])):
        add(rng.randrange(VOCABULARY), rng.randrange(-1, len(tokens)))
    segment = Segment(KVRange(0, 0), 0, tuple(tokens), tuple(parents), len(tokens))
    return segment, path


def company(forward: HFRunner, rng: random.Random, kv_ranges: list[KVRange]) -> Iterator[Segment]:
    """Other sessions' segments, as they come."""
    for kv_range in rng.sample(kv_ranges, rng.randint(0, len(kv_ranges))):
        tokens = some_tokens(rng, rng.choice([1, 2, 5, 33, 70]))
        parents = tuple(rng.randrange(-1, node) for node in range(len(tokens)))
        if len(tokens) > 5:
            parents = tree.chain(len(tokens))
        yield Segment(
            kv_range, rng.choice([0, 17, 63, 64]), tokens, parents, rng.choice([1, len(tokens)])
        )


def together(
    forward: HFRunner, stream: tuple[int, ...], rng: random.Random, others: int = OTHERS
) -> list[torch.Tensor]:
    """The stream's logits, fed in pieces of any size, in trees, beside other sessions."""
    kv_ranges = [forward.pool.allocate(SIZE) for _ in range(others + 1)]
    own, *neighbours = [kv_range for kv_range in kv_ranges if kv_range]
    rows: list[torch.Tensor] = []
    while len(rows) < len(stream):
        piece = stream[len(rows) :][: rng.choice([1, 2, 3, 9, 40, 70])]
        guessed, path = with_guesses(rng, piece)
        mine = Segment(own, len(rows), guessed.tokens, guessed.parents, guessed.wanted)
        segments = [mine, *company(forward, rng, neighbours)]
        rng.shuffle(segments)
        logits = forward(segments)[segments.index(mine)]
        forward.pool.compact(own, len(rows), path)
        rows += [logits[node] for node in path]
    for kv_range in (own, *neighbours):
        forward.pool.release(kv_range)
    return rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", [*SERVED, "qwen2_window"])
@torch.inference_mode()
def test_every_row_is_the_same_alone_and_in_a_crowd(
    family: str, dtype: str, make_model: MakeModel
) -> None:
    """Alone and a token a step, or in ragged batches with five others, with random draft lengths,
    chunks and trees, on side branches too.
    """
    forward = HFRunner(load(make_model(family, 0), dtype), POSITIONS)
    rng = random.Random(2)
    for _ in range(3):
        stream = some_tokens(rng, STREAM)
        pairs = zip(alone(forward, stream), together(forward, stream, rng), strict=True)
        differing = [
            place for place, (one, other) in enumerate(pairs) if not torch.equal(one, other)
        ]
        assert not differing


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.inference_mode()
def test_every_row_is_the_same_alone_and_beside_64_sessions(
    dtype: str, make_model: MakeModel
) -> None:
    forward, rng = HFRunner(load(make_model("llama", 0), dtype), 65 * SIZE), random.Random(3)
    stream = some_tokens(rng, STREAM)
    pairs = zip(alone(forward, stream), together(forward, stream, rng, 64), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_layers_as_wide_as_those_of_real_models_are_exact(
    dtype: str, make_model: MakeModel
) -> None:
    wide = load(make_model("llama_wide", 0), dtype)
    assert str(self_test(HFRunner(wide, POSITIONS), "wide")) == "exact"


@pytest.mark.parametrize("family", SERVED)
def test_the_self_test_finds_the_core_architectures_exact(
    family: str, make_model: MakeModel
) -> None:
    assert str(self_test(HFRunner(load(make_model(family, 0)), POSITIONS), family)) == "exact"
