"""A network that is split among ranks computes the same as the whole one; each rank is a thread
here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from typing import Any

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from tandem.engine.parallel import shards
from tandem.engine.parallel.shards import Shard, check_split, join, joined, split
from tandem.protos.errors import Unusable
from tests.families import CONFIGS, REFUSED, build

TOKENS = torch.tensor([[5, 6, 7, 300, 9, 11, 5, 6]])
WHOLE = {
    *("gpt2", "biogpt", "gpt_bigcode", "hunyuan", "opt", "stablelm", "olmoe", "phimoe"),  # no plan
    *("deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "llama4_text", "mixtral", "qwen2_moe"),
    *(
        "qwen3_moe",
        "gemma3n_text",
        "gemma4_text",
        "glm4",
        "olmo2",
        "olmo3",
        "phi3",
        "phi3_longrope",
    ),
}
SPLIT = sorted(CONFIGS.keys() - REFUSED.keys() - WHOLE)


class Meeting:
    """A place where the threads of all ranks gather tensors."""

    def __init__(self, count: int) -> None:
        self.count, self._barrier, self._here = count, Barrier(count, timeout=60), local()
        self._parts: list[Any] = [None] * count

    def gathered(self, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[self._here.rank] = part
        self._barrier.wait()
        parts = list(self._parts)
        self._barrier.wait()
        return parts

    def run(self, work: Callable[[Shard], Any]) -> list[Any]:
        """Return each rank's result for its shard."""

        def one(rank: int) -> Any:
            self._here.rank = rank
            with torch.inference_mode():
                return work(Shard(rank, self.count))

        with ThreadPoolExecutor(self.count) as pool:
            return list(pool.map(one, range(self.count)))


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Meeting]:
    def meet(count: int) -> Meeting:
        made = Meeting(count)
        monkeypatch.setattr(shards, "gathered", made.gathered)
        return made

    return meet


def biased(family: str) -> PreTrainedModel:
    """Return a model with random biases; those of a new model are zero."""
    network = build(family, 0)
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0.0, 0.5)
    return network


@pytest.mark.parametrize("family", SPLIT)
def test_all_ranks_compute_the_same_and_what_the_whole_network_does(
    family: str, meeting: Callable[[int], Meeting]
) -> None:
    networks = [biased(family) for _ in range(3)]
    with torch.inference_mode():
        whole = networks[2](input_ids=TOKENS).logits

    def logits(shard: Shard) -> torch.Tensor:
        network = networks[shard.rank]
        split(network, shard)
        with joined(network):
            return network(input_ids=TOKENS).logits

    first, *others = meeting(2).run(logits)
    assert all(torch.equal(first, other) for other in others)
    assert torch.allclose(first, whole, atol=1e-4, rtol=1e-4)


def test_partial_sums_are_added_in_the_order_of_ranks(meeting: Callable[[int], Meeting]) -> None:
    parts = torch.tensor([1e8, 1.0, -1e8, 0.25])
    sums = meeting(4).run(lambda shard: shards.RankSum()(parts[shard.rank : shard.rank + 1]))
    assert [float(each) for each in sums] == [0.25] * 4, "((1e8 + 1) - 1e8) + .25 in float32"


def test_a_layer_that_has_taken_others_in_is_summed_as_a_whole() -> None:
    network = build("llama", 0)
    split(network, Shard(0, 2))
    network.set_submodule("model.layers.0.mlp", nn.Identity())
    names = join(network)
    assert "model.layers.0.mlp" in names and "model.layers.1.mlp.down_proj" in names


@pytest.mark.parametrize("family", sorted(WHOLE))
def test_a_class_that_cannot_be_split_is_refused(family: str) -> None:
    with pytest.raises(Unusable, match="cannot be split among"):
        split(build(family, 0), Shard(0, 2))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_a_split_is_checked_without_weights(family: str) -> None:
    check_split(CONFIGS[family](), 2)
    with pytest.raises(Unusable, match="its num_attention_heads are 4"):
        check_split(CONFIGS[family](), 8)


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(Unusable, match="among 3 ranks: its num_attention_heads are 4"):
        split(build("llama", 0), Shard(0, 3))
