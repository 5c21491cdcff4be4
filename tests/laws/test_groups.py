"""Weights of 8 and 4 bits in panels give the bits of the dequantised weights, beside any other
rows, with any number of threads and with every build.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tandem.engine.formats.blocks import READERS
from tandem.engine.forward.cpu.kernels import Kernels, kernels
from tandem.engine.forward.cpu.panels import GroupedPart, PanelLinear
from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.forward.groups import GROUPS, LEVELS, Code, Groups, grouped, rounded
from tandem.engine.model.grouping import as_part
from tests.ggufs import as_weight, dequantised, some_blocks

SHAPES = [(70, 768), (33, 1280)]  # outputs, inputs
COUNTS = (*range(1, 14), 24, 25, 40)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def weight_of(groups: Groups, layers: int | None = None) -> GroupedWeight:
    return GroupedWeight([as_part(groups)], torch.float32, layers)


def some_groups(code: Code, outputs: int, inputs: int, group: int, parts: int) -> Groups:
    """Draw any codes except those of float8 that are not numbers."""
    most = 16 if code is Code.NIBBLES else 0x7F if code is Code.FLOAT8 else 256
    codes = torch.randint(0, most, (outputs, inputs), dtype=torch.uint8)
    scales = torch.randn(outputs, inputs // group, parts).half().float()
    return Groups(code, codes, scales, None, 8 if code is Code.NIBBLES else 0)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_format_gives_the_bits_of_the_dequantised_matrix(
    kind: str, shape: tuple[int, int], build: Kernels
) -> None:
    """The test covers codes as numbers and as products: each output is one chain of additions,
    whatever is multiplied.
    """
    torch.manual_seed(0)
    blocks = some_blocks(kind, *shape)
    numbers, rows = dequantised(kind, blocks), torch.randn(COUNTS[-1], shape[1])
    weight = as_weight(kind, blocks, torch.float32)
    assert torch.equal(weight.detach() + 0, numbers)
    layer, plain = PanelLinear(weight, None), PanelLinear(numbers, None)
    expected = plain(rows)
    for build.threads in (1, 3):
        for count in COUNTS:
            assert torch.equal(layer(rows[:count]), expected[:count]), f"{count} rows"
            assert torch.equal(layer(rows[-count:]), expected[-count:]), f"last {count}"


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("code", Code)
def test_codes_of_any_kind_in_groups_of_any_size_give_the_bits_of_their_numbers(
    code: Code, group: int, parts: int, build: Kernels
) -> None:
    torch.manual_seed(0)
    groups, bias = some_groups(code, 50, 512, group, parts), torch.randn(50)
    layer, rows = PanelLinear(weight_of(groups), bias), torch.randn(20, 512)
    expected = PanelLinear(groups.numbers(), bias)(rows)
    for count in (1, 2, 5, 20):
        assert torch.equal(layer(rows[:count]), expected[:count])


@pytest.mark.parametrize("kind", READERS)
def test_a_weight_stays_in_codes_on_another_device(kind: str) -> None:
    """The numbers are computed there, too: a device without memory shows where they would be."""
    layer = nn.Linear(512, 40, bias=False)
    weight = as_weight(kind, some_blocks(kind, 40, 512), torch.bfloat16)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.to("meta")
    assert isinstance(layer.weight, GroupedWeight)
    assert layer.weight.device.type == layer.weight.parts[0].device.type == "meta"
    assert layer.weight.parts[0].numbers(slice(3, 5)).device.type == "meta"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_any_dtype_are_multiplied_with_weights_that_are_not_rounded_to_it(
    dtype: torch.dtype, build: Kernels
) -> None:
    torch.manual_seed(0)
    blocks, rows = some_blocks("Q4_1", 48, 512), torch.randn(9, 512).to(dtype)
    out = PanelLinear(as_weight("Q4_1", blocks, dtype), None)(rows)
    plain = PanelLinear(dequantised("Q4_1", blocks), None)(rows.float())
    assert torch.equal(out, plain.to(dtype))


def test_many_layers_at_once_give_the_bits_of_each_alone(build: Kernels) -> None:
    torch.manual_seed(0)
    counts = torch.tensor([0, 3, 1, 0, 500, 17, 0])
    groups = some_groups(Code.NIBBLES, 7 * 40, 64, 32, 2)
    rows, biases = torch.randn(int(counts.sum()), 64), torch.randn(7, 40)
    together = PanelLinear(weight_of(groups, 7), biases)
    layers = [
        PanelLinear(weight_of(groups.rows(slice(40 * n, 40 * n + 40))), biases[n]) for n in range(7)
    ]
    split = zip(layers, rows.split(counts.tolist()), strict=True)
    expected = torch.cat([layer(own) for layer, own in split])
    for build.threads in (1, 2, 3):
        assert torch.equal(together(rows, counts.cumsum(0)), expected)


def test_outputs_that_are_stored_in_several_ways_are_one_layer(build: Kernels) -> None:
    torch.manual_seed(0)
    parts = {kind: some_blocks(kind, 40, 512) for kind in ("Q4_K", "Q6_K")}
    plain, rows, bias = torch.randn(20, 512), torch.randn(7, 512), torch.randn(100)
    weights = [as_weight(kind, blocks, torch.float32) for kind, blocks in parts.items()]
    numbers = torch.cat([dequantised(kind, blocks) for kind, blocks in parts.items()] + [plain])
    joined = torch.cat([*weights, plain])
    assert [part.shape[0] for part in torch.cat([*weights, *weights[1:]]).parts] == [40, 80]
    assert isinstance(joined, GroupedWeight) and joined.shape == numbers.shape
    assert torch.equal(PanelLinear(joined, bias)(rows), PanelLinear(numbers, bias)(rows))


def test_a_network_sees_the_numbers_that_a_weight_stands_for() -> None:
    groups = some_groups(Code.BYTES, 6 * 32, 64, 32, 1)
    numbers, rows, ids = groups.numbers(), torch.randn(5, 64), torch.tensor([[3, 0], [31, 3]])
    one, several = weight_of(groups), weight_of(groups, 6)
    close = functional.linear(rows, one), functional.linear(rows, numbers)
    assert torch.allclose(*close, rtol=1e-4, atol=1e-3)
    assert torch.equal(functional.embedding(ids, one), functional.embedding(ids, numbers))
    assert torch.equal(several[2], numbers.view(6, 32, 64)[2])
    assert torch.equal(several.mT, numbers.view(6, 32, 64).mT)


def test_embeddings_are_looked_up_in_the_panels_of_the_output_layer(build: Kernels) -> None:
    for kind in READERS:
        blocks = some_blocks(kind, 90, 512)
        layer = PanelLinear(as_weight(kind, blocks, torch.float32), None)
        (part,) = layer.parts
        assert isinstance(part, GroupedPart)
        shared, ids = GroupedWeight([part.panels], torch.float32), torch.tensor([[89, 0], [17, 17]])
        expected = functional.embedding(ids, dequantised(kind, blocks))
        assert torch.equal(functional.embedding(ids, shared), expected)


def test_weights_rounded_to_8_bits_are_off_by_half_a_level_of_their_group_at_most() -> None:
    torch.manual_seed(0)
    for inputs, group in ((192, 32), (48, 16)):
        weight = torch.randn(50, inputs)
        groups = rounded(weight)
        assert groups and groups.group == group
        level = weight.unflatten(1, (-1, group)).abs().amax(2) / LEVELS
        allowed = 0.501 * level.repeat_interleave(group, 1)
        assert ((groups.numbers() - weight).abs() <= allowed).all()
    assert rounded(torch.randn(50, 40)) is None, "no group has as many inputs"


def test_groups_of_other_sizes_are_cut_or_refused() -> None:
    codes, scales = torch.zeros(3, 576, dtype=torch.uint8), torch.ones(3, 1, 1)
    made = grouped(Code.BYTES, codes, scales)
    assert made and made.group == 64
    assert grouped(Code.BYTES, codes[:, :24], scales) is None
