"""Exact mode: a row's logits are the same, bit for bit, whatever else is in its step. The tests
also say what the self-test notices at start, and what it promises.
"""

from __future__ import annotations

import math
import random
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from transformers import LlamaConfig, LlamaForCausalLM

from tandem import models
from tandem.engine.config import ModelServiceConfig
from tandem.engine.exact.exactness import Exactness, self_test
from tandem.engine.forward.cpu.kernels import kernels, use_threads
from tandem.engine.forward.segment import Segment
from tandem.engine.host import load_and_test
from tandem.engine.model.load import load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tests.families import SERVED, VOCABULARY
from tests.served import Pair
from tests.talks import SIZE, differing_rows, some_tokens

MakeModel = Callable[[str, int], Path]
POSITIONS = 8 * SIZE
MIXTURES = (
    "deepseek_v3",
    "glm4_moe",
    "gpt_oss",
    "granitemoe",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen3_moe",
)
needs_kernels = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


@needs_kernels
@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, "float32") for family in (*SERVED, "qwen2_window")), ("llama", "bfloat16")],
)
def test_every_row_is_the_same_alone_and_in_a_crowd(
    family: str, dtype: str, make_model: MakeModel
) -> None:
    """Each row is fed alone, a token per step, and in ragged batches with five others, with random
    draft lengths, chunks and trees, also on side branches.
    """
    forward = HFRunner(load(make_model(family, 0), dtype), POSITIONS)
    assert differing_rows(forward, random.Random(2), 150, others=5) == []


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_row_is_the_same_alone_and_beside_64_sessions(
    dtype: str, make_model: MakeModel
) -> None:
    forward = HFRunner(load(make_model("llama", 0), dtype), 66 * SIZE)
    assert differing_rows(forward, random.Random(3), 80, others=64) == []


@needs_kernels
@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, "float32") for family in (*SERVED, "llama_wide")), ("llama_wide", "bfloat16")],
)
def test_the_self_test_finds_core_architectures_and_layers_as_wide_as_real_ones_exact(
    family: str, dtype: str, make_model: MakeModel
) -> None:
    forward = HFRunner(load(make_model(family, 0), dtype), POSITIONS)
    assert str(self_test(forward, family)) == "exact"


@needs_kernels
@pytest.mark.parametrize(
    "dtype",
    ["float32", pytest.param("bfloat16", marks=pytest.mark.long("the same in another dtype"))],
)
@pytest.mark.parametrize("family", MIXTURES)
def test_mixtures_of_experts_are_exact(family: str, dtype: str, make_model: MakeModel) -> None:
    """A row has the same bits whatever other rows go to the experts that it chooses."""
    forward = HFRunner(load(make_model(family, 0), dtype), POSITIONS)
    assert str(self_test(forward, family)) == "exact"
    assert differing_rows(forward, random.Random(2), 110, others=3) == []


@needs_kernels
@pytest.mark.parametrize(
    ("size", "repeat", "dtype"),
    [
        (128, 4, "float32"),
        (128, 4, "bfloat16"),
        (96, 1, "float32"),
        (256, 2, "bfloat16"),
        (80, 1, "bfloat16"),
        (56, 4, "float32"),
    ],
)
def test_heads_as_large_as_those_of_real_models_are_exact(
    size: int, repeat: int, dtype: str, tmp_path: Path
) -> None:
    """There are two key heads, each shared by several query heads; texts are fed in chunks of any
    size and in trees.
    """
    torch.manual_seed(size)
    options = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
    heads = {"head_dim": size, "num_attention_heads": 2 * repeat, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=2048, **options, **heads)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models.TARGET / name, tmp_path)
    forward = HFRunner(load(tmp_path, dtype), POSITIONS)
    assert differing_rows(forward, random.Random(4), 300) == []


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
    with pytest.raises(Unusable, match=r"ForCausalLM differ by .*, fed .* after .* 96"):
        self_test(forward, family)


@pytest.mark.parametrize("problem", [None, "some rows differ"])
@pytest.mark.parametrize("differently", [True, False])
def test_a_model_that_is_not_exact_is_tried_again_if_it_goes_another_way(
    problem: str | None, differently: bool, embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    monkeypatch.setattr(HFRunner, "give_up_exactness", lambda _: differently)

    def tried(forward: HFRunner, *_: object) -> Exactness:
        modes.append(forward.backend)
        return Exactness(problem)

    monkeypatch.setattr("tandem.engine.host.self_test", tried)
    config = ModelServiceConfig(model=embedded.draft, threads=1)
    forward, exactness = load_and_test(config, exact=True)
    assert len(modes) == 1 + (problem is not None and differently)
    assert exactness.problem == problem and not forward.model.reference.main.logits


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_that_fails_the_self_test_may_be_served_with_a_warning_and_is_never_called_exact(
    exact: bool, embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.model.rounding.FACTOR", 1e-9)
    monkeypatch.setattr("tandem.engine.model.rounding.SUMS", 1e-9)
    config = ModelServiceConfig(model=embedded.draft, threads=1)
    with pytest.raises(Unusable, match=r"fails the self-test: .* differ by .*; self_test=warn"):
        load_and_test(config, exact)
    with capture_logs() as logs:
        _, exactness = load_and_test(config.model_copy(update={"self_test": "warn"}), exact)
    assert str(exactness) == "exact unavailable: it fails the self-test"
    assert exactness.wrong in [each.get("problem") for each in logs]


def by_tiles(folder: Path) -> HFRunner:
    """Return a forward pass without compiled kernels."""
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


def test_the_self_test_says_why_a_model_is_not_exact(make_model: MakeModel) -> None:
    """Experts of an unknown form are left to PyTorch, whose rounding depends on the number of
    rows.
    """
    llama, experts = make_model("llama", 0), make_model("llama4_text", 0)
    for forward, reason in (
        (by_tiles(llama), "the rounding of PyTorch depends on the number of rows"),
        (HFRunner(load(llama), POSITIONS, exact=False), "switched off"),
        (HFRunner(load(experts), POSITIONS), ".* rows differ"),
    ):
        assert re.match(f"exact unavailable: {reason}", str(self_test(forward, "odd")))


def test_the_self_test_notices_a_wrong_mask(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted mistake lets a node see all earlier rows instead of its ancestors."""
    everything = lambda parents: torch.ones(len(parents), len(parents)).tril().bool()  # noqa: E731
    monkeypatch.setattr("tandem.engine.forward.tiles._ancestry", everything)
    refuses(by_tiles(make_model("llama", 0)), "differ by")


@needs_kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.inference_mode()
def test_prompts_cut_anywhere_are_exact_by_any_number_of_threads(
    embedded: Pair, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.WORTH_SHARING", 1)
    tokens = some_tokens(random.Random(5), 96)
    forward = HFRunner(load(embedded.draft, dtype), POSITIONS)
    table = forward.pool.allocate(SIZE)
    assert table
    rows = []
    try:
        for threads, size in product((1, 2, 3, 4), (8, 96)):
            use_threads(threads)
            chunks = [
                forward([Segment(table, start, tokens[start:][:size], tree.chain(size), size)])
                for start in range(0, 96, size)
            ]
            rows.append(torch.cat([logits for (logits,) in chunks]))
    finally:
        use_threads(1)
    assert all(torch.equal(rows[0], others) for others in rows)
