"""Exact mode: a row's logits are the same, bit for bit, whatever else is in its step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from engine.config import ModelServiceConfig
from engine.exactness import Exactness, self_test
from engine.forward import Backend, Forward
from engine.host import prepare
from engine.model import load
from engine.packed import can_pack
from engine.plan import Segment
from engine.rooms import Room
from protos import tree
from protos.errors import Unusable
from tests.conftest import Pair
from tests.families import SERVED, VOCABULARY

MakeModel = Callable[[str, int], Path]
POSITIONS, ROOM, STREAM, OTHERS = 2048, 256, 150, 5


def some_tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(count))


def alone(forward: Forward, stream: tuple[int, ...]) -> list[torch.Tensor]:
    """The stream's logits, fed one token a step by itself."""
    room = forward.pool.take(ROOM)
    assert room
    rows = [
        forward([Segment(room, place, (token,), (-1,), 1)])[0][0]
        for place, token in enumerate(stream)
    ]
    forward.pool.give_back(room)
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
    segment = Segment(Room(0, 0), 0, tuple(tokens), tuple(parents), len(tokens))
    return segment, path


def company(forward: Forward, rng: random.Random, rooms: list[Room]) -> Iterator[Segment]:
    """Other sessions' segments, as they come."""
    for room in rng.sample(rooms, rng.randint(0, len(rooms))):
        tokens = some_tokens(rng, rng.choice([1, 2, 5, 33, 70]))
        parents = tuple(rng.randrange(-1, node) for node in range(len(tokens)))
        if len(tokens) > 5:
            parents = tree.chain(len(tokens))
        yield Segment(
            room, rng.choice([0, 17, 63, 64]), tokens, parents, rng.choice([1, len(tokens)])
        )


def together(forward: Forward, stream: tuple[int, ...], rng: random.Random) -> list[torch.Tensor]:
    """The stream's logits, fed in pieces of any size, in trees, beside other sessions."""
    rooms = [forward.pool.take(ROOM) for _ in range(OTHERS + 1)]
    own, *others = [room for room in rooms if room]
    rows: list[torch.Tensor] = []
    while len(rows) < len(stream):
        piece = stream[len(rows) :][: rng.choice([1, 2, 3, 9, 40, 70])]
        guessed, path = with_guesses(rng, piece)
        mine = Segment(own, len(rows), guessed.tokens, guessed.parents, guessed.wanted)
        segments = [mine, *company(forward, rng, others)]
        rng.shuffle(segments)
        logits = forward(segments)[segments.index(mine)]
        forward.pool.compact(own, len(rows), path)
        rows += [logits[node] for node in path]
    for room in (own, *others):
        forward.pool.give_back(room)
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
    forward = Forward(load(make_model(family, 0), dtype), POSITIONS)
    rng = random.Random(2)
    for _ in range(3):
        stream = some_tokens(rng, STREAM)
        pairs = zip(alone(forward, stream), together(forward, stream, rng), strict=True)
        differing = [
            place for place, (one, other) in enumerate(pairs) if not torch.equal(one, other)
        ]
        assert not differing


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_layers_as_wide_as_those_of_real_models_are_exact(
    dtype: str, make_model: MakeModel
) -> None:
    """Kernels that round differently from others come into play with sums of some length."""
    if not can_pack(getattr(torch, dtype), torch.device("cpu")):
        pytest.skip(f"no kernels for packed weights of {dtype}")
    wide = load(make_model("llama_wide", 0), dtype)
    assert str(self_test(Forward(wide, POSITIONS), "wide")) == "exact"


@pytest.mark.parametrize("family", SERVED)
def test_the_self_test_finds_the_core_architectures_exact(
    family: str, make_model: MakeModel
) -> None:
    assert str(self_test(Forward(load(make_model(family, 0)), POSITIONS), family)) == "exact"


@pytest.mark.parametrize(
    ("family", "dtype", "refused"),
    [
        ("qwen3_moe", "float32", True),
        ("qwen3_moe", "bfloat16", False),
        ("llama", "bfloat16", True),
        ("llama_dynamic", "float16", True),
    ],
)
def test_one_row_that_is_far_off_is_too_many_but_where_rounding_chooses_experts(
    family: str, dtype: str, refused: bool, make_model: MakeModel
) -> None:
    forward = Forward(load(make_model(family, 0), dtype), POSITIONS)
    known = forward.model.original.main.logits
    known[128] = known[128] + 5
    with pytest.raises(Unusable, match="differ by") if refused else nullcontext():
        self_test(forward, family)
    for place in [place for place in known if place > 128]:
        known[place] = known[place] + 5
    with pytest.raises(Unusable, match=r"ForCausalLM differ by .* itself, fed .* behind .* 96"):
        self_test(forward, family)


@pytest.mark.parametrize("problem", [None, "some rows differ"])
def test_a_model_that_is_not_exact_is_tried_as_it_is_going_to_be_served(
    problem: str | None, embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def tried(forward: Forward, _: str) -> Exactness:
        modes.append(forward.exact)
        return Exactness(problem)

    monkeypatch.setattr("engine.host.self_test", tried)
    forward, exactness = prepare(ModelServiceConfig(model=embedded.draft), exact=True)
    assert modes == ([True] if problem is None else [True, False])
    assert exactness.problem == problem and not forward.model.original.main.logits


def by_tiles(folder: Path, exact: bool = True) -> Forward:
    """Without kernels of our own."""
    return Forward(load(folder), POSITIONS, exact, Backend.TILES)


def test_the_self_test_notices_logits_that_are_no_numbers(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = lambda tile, query, *_: query[0, :, tile.rows].transpose(0, 1) * math.nan  # noqa: E731
    monkeypatch.setattr("engine.attention.attend_tile", nothing)
    with pytest.raises(Unusable, match="differ by inf"):
        self_test(by_tiles(make_model("llama", 0)), "llama")


def test_the_self_test_says_which_heads_are_not_exact(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.exactness.grain", lambda *_: None)
    forward = by_tiles(make_model("llama", 0))
    assert "heads of 16 rounds by the number of rows" in str(self_test(forward, "llama"))


def test_the_self_test_finds_a_model_that_depends_on_its_company(make_model: MakeModel) -> None:
    """Experts see however many rows were sent to them, and round by how many that is."""
    exactness = self_test(Forward(load(make_model("qwen3_moe", 0)), POSITIONS), "qwen3_moe")
    assert str(exactness).startswith("exact unavailable: ") and "rows differ" in str(exactness)


def test_fast_mode_says_that_it_is_not_exact(make_model: MakeModel) -> None:
    forward = Forward(load(make_model("llama", 0)), POSITIONS, exact=False)
    assert str(self_test(forward, "llama")) == "exact unavailable: switched off"


def test_the_self_test_notices_a_wrong_mask(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeing all earlier rows instead of one's ancestors is the mistake that a tree mask guards
    against.
    """
    everything = lambda parents: torch.ones(len(parents), len(parents)).tril().bool()  # noqa: E731
    monkeypatch.setattr("engine.plan._ancestry", everything)
    with pytest.raises(Unusable, match="differ by"):
        self_test(by_tiles(make_model("llama", 0), exact=False), "llama")


def test_the_self_test_notices_branches_attended_as_one_line(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exact mode, forgetting that a side branch has ancestors of its own."""
    monkeypatch.setattr("protos.tree.path", lambda parents, node: [node])
    with pytest.raises(Unusable, match="differ by"):
        self_test(by_tiles(make_model("llama", 0)), "llama")


@pytest.mark.parametrize("threads", [1, 2, 3])
@torch.inference_mode()
def test_what_the_self_test_promises_holds_for_prompts_cut_anywhere(
    embedded: Pair, threads: int
) -> None:
    """With three threads activations are computed in shares that depend on the number of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        forward = Forward(load(embedded.target), POSITIONS)
        exact = self_test(forward, "target").problem is None
        whole, cut = forward.pool.take(ROOM), forward.pool.take(ROOM)
        assert whole and cut
        tokens = some_tokens(random.Random(5), 200)
        (rows,) = forward([Segment(whole, 0, tokens, tree.chain(200), 200)])
        pieces = [
            forward([Segment(cut, start, tokens[start : start + 8], tree.chain(8), 8)])[0]
            for start in range(0, 200, 8)
        ]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(rows, torch.cat(pieces)) or not exact
    assert exact or threads > 2
