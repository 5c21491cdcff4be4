"""Linear layers as GPTQ, AWQ and compressed-tensors store them: reading inverts packing as each
format defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tandem.engine.formats.linear_formats import format_of
from tandem.engine.forward.grouped_weight import GroupedWeight, numbers_of
from tandem.protos.errors import Unusable
from tests.packing import COMPRESSED, Packed, in_awq, in_float8, in_gptq, in_int8, in_words

OUTPUTS, INPUTS = SHAPE = 24, 64
CASES: Mapping[str, Callable[[], Packed]] = {
    "gptq 4 bits": lambda: in_gptq(SHAPE, 4, True),
    "gptq 8 bits": lambda: in_gptq(SHAPE, 8, True),
    "gptq with zeros": lambda: in_gptq(SHAPE, 4, False),
    "gptq 8 bits with zeros": lambda: in_gptq(SHAPE, 8, False),
    "gptq v2": lambda: in_gptq(SHAPE, 4, False, "gptq_v2"),
    "gptq in the order of activations": lambda: in_gptq(SHAPE, 4, False, mixed=True),
    "awq": lambda: in_awq(SHAPE),
    "words of 4 bits": lambda: in_words(SHAPE, 4, True),
    "words of 8 bits": lambda: in_words(SHAPE, 8, True),
    "words with zeros": lambda: in_words(SHAPE, 4, False),
    "words in the order of activations": lambda: in_words(SHAPE, 4, True, mixed=True),
    "int8 by outputs": lambda: in_int8(SHAPE, OUTPUTS, 1),
    "int8 by groups": lambda: in_int8(SHAPE, OUTPUTS, 2),
    "int8 at once": lambda: in_int8(SHAPE, 1, 1),
    "int8 with zeros": lambda: in_int8(SHAPE, OUTPUTS, 1, True),
    "fp8 by outputs": lambda: in_float8(SHAPE, 1, INPUTS),
    "fp8 at once": lambda: in_float8(SHAPE, OUTPUTS, INPUTS),
    "fp8 in blocks": lambda: in_float8(SHAPE, 8, 32),
    "fp8 in blocks that leave a rest": lambda: in_float8(SHAPE, 16, 48),
}
NUMBERS = {
    "fp8 in blocks that leave a rest",
    "gptq in the order of activations",
    "words in the order of activations",
}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_what_was_packed(name: str, grouped: bool) -> None:
    tensors, config, numbers = CASES[name]()
    form = format_of(config)
    assert form
    weight = form(tensors, INPUTS).weight(torch.float32, grouped)
    assert isinstance(weight, GroupedWeight) == (grouped and name not in NUMBERS)
    if isinstance(weight, GroupedWeight):
        weight = numbers_of(weight, slice(0, OUTPUTS))
    assert torch.allclose(weight, numbers, rtol=1e-6, atol=1e-6)
    assert weight.shape == (OUTPUTS, INPUTS)


def test_numbers_are_exact_where_scales_are_of_16_bits() -> None:
    tensors, config, numbers = in_gptq(SHAPE, 4, False)
    form = format_of(config)
    assert form
    for grouped in (False, True):
        weight = form(tensors, INPUTS).weight(torch.float32, grouped)
        whole = numbers_of(weight, slice(0, OUTPUTS)) if grouped else weight
        assert torch.equal(whole, numbers)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "format marlin"),
        ({"quant_method": "awq", "version": "gemv"}, "version gemv"),
        (COMPRESSED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse or rotated"),
        (COMPRESSED | {"transform_config": {"config_groups": {}}}, "sparse or rotated"),
    ],
)
def test_a_variant_that_is_not_read_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(Unusable, match=words):
        format_of(config)


def test_other_bits_are_refused() -> None:
    form = format_of({"quant_method": "gptq"})
    assert form
    tensors = {"qweight": torch.zeros(INPUTS * 3 // 32, OUTPUTS, dtype=torch.int32)}
    tensors |= {"scales": torch.ones(2, OUTPUTS), "qzeros": torch.zeros(2, 3)}
    with pytest.raises(Unusable, match="weights of 3 bits, but only 4 and 8 bits are supported"):
        form(tensors, INPUTS)


def test_scales_that_do_not_divide_a_weight_are_refused() -> None:
    tensors, _, _ = in_float8(SHAPE, 8, 48)
    tensors["weight_scale"] = tensors["weight_scale"].repeat(2, 1)[:5]
    form = format_of(COMPRESSED)
    assert form
    with pytest.raises(Unusable, match=r"scales \[5, 2\] do not divide \[24, 64\]"):
        form(tensors, INPUTS)
