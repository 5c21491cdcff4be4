"""Weights of 8 and 4 bits on a CUDA device, interpreted: products are right, and a row does not
depend on other rows.
"""

from __future__ import annotations

import pytest
import torch

from tandem.engine.formats.blocks import READERS
from tandem.engine.forward.cuda.coded_linear import CodedLinear
from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.forward.groups import GROUPS, Code
from tests.ggufs import as_weight, dequantised, some_blocks
from tests.interpreted import interpreted, ordered_sums
from tests.laws.test_groups import DTYPES, some_groups, weight_of

from tandem.engine.forward.cuda.kernels import codes  # isort: skip

pytestmark = interpreted


def some(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether numbers are exact ones, rounded to their dtype and in the sums before that."""
    unit = torch.finfo(found.dtype).eps + 16 * torch.finfo(torch.float32).eps
    return bool(((found.double() - exact).abs() <= unit * exact.abs().amax()).all())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("code", Code)
def test_a_product_with_codes_is_that_with_their_numbers(
    code: Code, group: int, parts: int
) -> None:
    torch.manual_seed(0)
    groups = some_groups(code, 70, 512, group, parts)
    for dtype in DTYPES:
        rows, bias = some(3, 512, dtype=dtype), some(70, dtype=dtype, seed=1)
        exact = rows.double() @ groups.numbers().double().T + bias.double()
        assert close(codes.linear(rows, codes.Codes.of(groups, dtype), bias), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("code", "parts"), [(Code.FLOAT8, 1), (Code.BYTES, 2), (Code.NIBBLES, 2)], ids=str
)
def test_a_row_depends_on_no_other(code: Code, parts: int, dtype: torch.dtype) -> None:
    """The rows are cut where a launch has other tiles, and where it has several."""
    torch.manual_seed(0)
    laid = codes.Codes.of(some_groups(code, 64, 256, 128, parts), dtype)
    rows = some(130, 256, dtype=dtype)
    with ordered_sums():
        every = codes.linear(rows, laid, None)
        for count in (1, 16, 17, 33, 65, 129):
            assert torch.equal(codes.linear(rows[-count:], laid, None), every[-count:]), count


@pytest.mark.parametrize("kind", READERS)
def test_layers_of_stored_blocks_are_those_of_dequantised_ones(kind: str) -> None:
    blocks, rows = some_blocks(kind, 40, 512), some(2, 3, 512, dtype=torch.float32)
    layer = CodedLinear(as_weight(kind, blocks, torch.float32), None)
    exact = rows.double() @ dequantised(kind, blocks).double().T
    assert layer(rows).shape == (2, 3, 40) and close(layer(rows), exact)


def test_outputs_that_are_stored_in_several_ways_are_one_layer() -> None:
    parts = {kind: some_blocks(kind, 40, 512) for kind in ("Q4_K", "Q6_K")}
    plain, bias = some(20, 512, dtype=torch.float32), some(100, dtype=torch.float32, seed=2)
    weights = [as_weight(kind, blocks, torch.float32) for kind, blocks in parts.items()]
    numbers = torch.cat([dequantised(kind, blocks) for kind, blocks in parts.items()] + [plain])
    joined = torch.cat([*weights, plain])
    assert isinstance(joined, GroupedWeight)
    rows = some(7, 512, dtype=torch.float32, seed=3)
    exact = rows.double() @ numbers.double().T + bias.double()
    assert close(CodedLinear(joined, bias)(rows), exact)


def test_a_layer_that_is_laid_out_bit_by_bit_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = weight_of(some_groups(Code.NIBBLES, 70, 512, 32, 2))
    rows = some(5, 512, dtype=torch.float32)
    whole = CodedLinear(weight, None)(rows)
    monkeypatch.setattr("tandem.engine.forward.cuda.coded_linear.CODES_AT_ONCE", 512 * 16)
    assert torch.equal(CodedLinear(weight, None)(rows), whole)
