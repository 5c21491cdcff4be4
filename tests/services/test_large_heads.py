"""Exact mode with heads as large as those of real models."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tandem import models
from tandem.engine.exact.exactness import self_test
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tests.families import VOCABULARY
from tests.services.test_exactness import some_tokens, with_guesses

LONG = 900  # tokens
pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


@pytest.fixture(scope="module")
def make_large(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """Makes a shallow Llama with two key heads of a size, each for so many query heads."""

    def make(size: int, repeat: int) -> Path:
        torch.manual_seed(size)
        options = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96}
        heads = {"head_dim": size, "num_attention_heads": 2 * repeat, "num_key_value_heads": 2}
        folder = tmp_path_factory.mktemp(f"heads-{size}-{repeat}-", numbered=True)
        config = LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=2048, **options, **heads
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(models.TARGET / name, folder)
        return folder

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("size", "repeat"), [(128, 4), (96, 1), (256, 2), (80, 1), (56, 4)])
@torch.inference_mode()
def test_heads_as_large_as_those_of_real_models_are_exact(
    size: int, repeat: int, dtype: str, make_large: Callable[[int, int], Path]
) -> None:
    """Over more keys than kernels take at once, in pieces of any size, in trees."""
    forward = HFRunner(load(make_large(size, repeat), dtype), 4096)
    assert str(self_test(forward, "large")) == "exact"
    rng, kv_ranges = random.Random(4), [forward.pool.allocate(LONG) for _ in range(2)]
    stream = some_tokens(rng, LONG - 100)
    rows: list[list[torch.Tensor]] = [[], []]
    for kv_range, own, most in zip(kv_ranges, rows, (3, 70), strict=True):
        assert kv_range
        while len(own) < len(stream):
            piece = stream[len(own) :][: rng.randint(1, most)]
            guessed, path = with_guesses(rng, piece)
            tree_ = guessed.tokens, guessed.parents, guessed.wanted
            (logits,) = forward([Segment(kv_range, len(own), *tree_)])
            forward.pool.compact(kv_range, len(own), path)
            own += [logits[node] for node in path]
    assert all(torch.equal(*pair) for pair in zip(*rows, strict=True))
