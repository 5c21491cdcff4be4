"""What the self-test notices at start, and what it promises."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.exactness import Exactness, self_test
from tandem.engine.forward.cpu.kernels import kernels, use_threads
from tandem.engine.forward.segment import Segment
from tandem.engine.host import load_and_test
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tests.conftest import Pair
from tests.services.test_exactness import some_tokens

MakeModel = Callable[[str, int], Path]
POSITIONS, SIZE = 2048, 256
needs_kernels = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


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
    forward = HFRunner(load(make_model(family, 0), dtype), POSITIONS)
    known = forward.model.reference.main.logits
    known[128] = known[128] + 5
    with pytest.raises(Unusable, match="differ by") if refused else nullcontext():
        self_test(forward, family)
    for place in [place for place in known if place > 128]:
        known[place] = known[place] + 5
    with pytest.raises(Unusable, match=r"ForCausalLM differ by .* itself, fed .* after .* 96"):
        self_test(forward, family)


@pytest.mark.parametrize("problem", [None, "some rows differ"])
@pytest.mark.parametrize("differently", [True, False])
def test_a_model_that_is_not_exact_is_tried_again_if_it_goes_another_way(
    problem: str | None, differently: bool, embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    monkeypatch.setattr(HFRunner, "give_up_exactness", lambda _: differently)

    def tried(forward: HFRunner, _: str) -> Exactness:
        modes.append(forward.backend)
        return Exactness(problem)

    monkeypatch.setattr("tandem.engine.host.self_test", tried)
    forward, exactness = load_and_test(ModelServiceConfig(model=embedded.draft), exact=True)
    assert len(modes) == 1 + (problem is not None and differently)
    assert exactness.problem == problem and not forward.model.reference.main.logits


def by_tiles(folder: Path) -> HFRunner:
    """Without compiled kernels."""
    return HFRunner(load(folder), POSITIONS, backend=AttentionBackend.TILES)


def refuses(forward: HFRunner, problem: str) -> None:
    with pytest.raises(Unusable, match=problem):
        self_test(forward, "llama")


def test_the_self_test_notices_logits_that_are_no_numbers(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = lambda tile, query, *_: query[0, :, tile.rows].transpose(0, 1) * math.nan  # noqa: E731
    monkeypatch.setattr("tandem.engine.forward.attention.attend_tile", nothing)
    refuses(by_tiles(make_model("llama", 0)), "differ by inf")


def test_the_self_test_says_that_pytorchs_kernels_are_not_exact(make_model: MakeModel) -> None:
    said = str(self_test(by_tiles(make_model("llama", 0)), "llama"))
    assert said == "exact unavailable: PyTorch rounds by the number of rows"


def test_the_self_test_finds_a_model_that_depends_on_its_company(make_model: MakeModel) -> None:
    """Experts see however many rows were sent to them, and round by how many that is."""
    exactness = self_test(HFRunner(load(make_model("qwen3_moe", 0)), POSITIONS), "qwen3_moe")
    assert str(exactness).startswith("exact unavailable: ") and "rows differ" in str(exactness)


def test_fast_mode_says_that_it_is_not_exact(make_model: MakeModel) -> None:
    forward = HFRunner(load(make_model("llama", 0)), POSITIONS, exact=False)
    assert str(self_test(forward, "llama")) == "exact unavailable: switched off"


def test_the_self_test_notices_a_wrong_mask(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeing all earlier rows instead of one's ancestors is the mistake that a tree mask guards
    against.
    """
    everything = lambda parents: torch.ones(len(parents), len(parents)).tril().bool()  # noqa: E731
    monkeypatch.setattr("tandem.engine.forward.tiles._ancestry", everything)
    refuses(by_tiles(make_model("llama", 0)), "differ by")


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@torch.inference_mode()
def test_prompts_cut_anywhere_are_exact_by_any_number_of_threads(
    embedded: Pair, threads: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.WORTH_SHARING", 1)
    try:
        forward = HFRunner(load(embedded.target, dtype), POSITIONS)
        use_threads(threads)
        assert self_test(forward, "target").problem is None
        whole, cut = forward.pool.allocate(SIZE), forward.pool.allocate(SIZE)
        assert whole and cut
        tokens = some_tokens(random.Random(5), 200)
        (rows,) = forward([Segment(whole, 0, tokens, tree.chain(200), 200)])
        pieces = [
            forward([Segment(cut, start, tokens[start : start + 8], tree.chain(8), 8)])[0]
            for start in range(0, 200, 8)
        ]
    finally:
        use_threads(1)
    assert torch.equal(rows, torch.cat(pieces))
