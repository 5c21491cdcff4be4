"""The output layer is computed only for rows whose logits are wanted, and its results are not
rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.protos import tree

MakeModel = Callable[[str, int], Path]
POSITIONS = 512
FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2", "cohere", "granite", "mixtral")
NOT_THAT_OF_BFLOAT16 = 0.9  # share of all logits

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def fed(forward: HFRunner, count: int, wanted: int) -> torch.Tensor:
    """Return the logits of the last `wanted` tokens of a new text."""
    table = forward.pool.allocate(count)
    assert table
    tokens = tuple(range(7, 7 + count))
    (logits,) = forward([Segment(table, 0, tokens, tree.chain(count), wanted)])
    forward.pool.release(table)
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_output_layer_is_given_the_rows_that_are_wanted_and_no_others(
    family: str, make_model: MakeModel
) -> None:
    """A piece of a prompt wants no logits."""
    forward, given = HFRunner(load(make_model(family, 0)), POSITIONS), list[int]()
    output: Any = forward.model.network.get_output_embeddings()
    output.register_forward_pre_hook(lambda _, rows: given.append(rows[0].shape[-2]))
    for count, wanted in ((16, 0), (16, 1), (1, 1), (9, 5), (70, 0)):
        assert fed(forward, count, wanted).shape == (wanted, forward.model.vocab_size)
    assert given == [0, 1, 1, 5, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_half_precision_are_not_rounded_to_it(family: str, make_model: MakeModel) -> None:
    """Near 20, bfloat16 has 8 values between two whole numbers, so many tokens would be equally
    likely.
    """
    forward = HFRunner(load(make_model(family, 0), "bfloat16"), POSITIONS)
    logits = fed(forward, 20, 20)
    assert logits.dtype == torch.float32
    off = logits != logits.bfloat16().float()
    assert off.float().mean() > NOT_THAT_OF_BFLOAT16
