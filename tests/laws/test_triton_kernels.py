"""The kernels for CUDA devices, interpreted: their results are right, and a row does not depend on
other rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.forward import operations
from tandem.engine.forward.cpu.kernels import Activation
from tandem.engine.forward.cuda import attention
from tandem.engine.forward.cuda.rows import KVLayout, RowPlan, block_rows
from tandem.engine.forward.cuda.table import row_plans
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.forward.gated import ACTIVATIONS
from tandem.engine.forward.segment import Segment
from tandem.protos import tree
from tests.interpreted import interpreted, ordered_sums

from tandem.engine.forward.cuda.kernels import attend, gated, norm, rotary  # isort: skip

pytestmark = interpreted

DTYPES = [torch.float32, torch.bfloat16]
LAYERS = [
    LayerGeometry(2, 32, 32, 4),
    LayerGeometry(1, 24, 16, 3),
    LayerGeometry(1, 16, 16, 1, window=100),
    LayerGeometry(1, 48, 48, 2, fused=False),
    LayerGeometry(1, 16, 16, 20, fused=False, window=100),
]
EPSILON = 1e-5


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    """Use one thread, so that PyTorch's own sums have an order, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [8, 96, 300])
def test_a_norm_divides_by_the_root_of_the_mean_square(size: int, dtype: torch.dtype) -> None:
    rows, scale = some(3, 5, size, dtype=dtype), some(size)
    exact = rows.double() * (rows.double().square().mean(-1, keepdim=True) + EPSILON).rsqrt()
    expected = (exact * scale).to(dtype)
    found = norm.norm(rows, scale, EPSILON)
    torch.testing.assert_close(
        found, expected, rtol=2**-8 if dtype != torch.float32 else 1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_between_others_are_normalised_as_those_that_lie_alone(dtype: torch.dtype) -> None:
    heads = some(7, 4, 40, dtype=dtype)[..., 8:]
    alone = norm.norm(heads.contiguous(), some(32), EPSILON)
    assert torch.equal(norm.norm(heads, some(32), EPSILON), alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_and_its_norm_have_the_bits_of_both_by_themselves(dtype: torch.dtype) -> None:
    one, other, scale = some(9, 96, dtype=dtype), some(9, 96, dtype=dtype, seed=1), some(96)
    sums, found = norm.add_norm(one, other, scale, EPSILON)
    assert torch.equal(sums, one + other)
    assert torch.equal(found, norm.norm(one + other, scale, EPSILON))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotary_positions_have_the_bits_of_the_operations(dtype: torch.dtype) -> None:
    """Other data lie between the heads, and only the slots of the rows are written."""
    rows, heads, shared, size, value_size = 5, 6, 2, 24, 16
    wide = some(rows, heads * size + 40, dtype=dtype)[:, 3 : 3 + heads * size]
    query = wide.view(1, rows, heads, size).transpose(1, 2)
    key = some(1, rows, shared, size, dtype=dtype, seed=1).transpose(1, 2)
    value = some(1, rows, shared, value_size, dtype=dtype, seed=2).transpose(1, 2)
    cos, sin = (some(1, 1, rows, size, dtype=dtype, seed=seed) for seed in (3, 4))
    slots = torch.tensor([3, 19, 0, 7, 8])
    stores = [
        [some(20, shared, width, dtype=dtype) for width in (size, value_size)] for _ in range(2)
    ]
    found = rotary.rotate_store(query, key, value, cos, sin, slots, *stores[0])
    expected = operations.rotate_store(query, key, value, cos, sin, slots, *stores[1])
    assert torch.equal(found, expected)
    assert all(map(torch.equal, *stores))


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("rows", "inputs", "size"), [(1, 96, 80), (17, 160, 64), (130, 64, 100)])
def test_a_gated_layer_is_two_products_and_a_gate(
    rows: int, inputs: int, size: int, activation: Activation
) -> None:
    given, weight = some(rows, inputs), some(2 * size, inputs, seed=1) / inputs**0.5
    wide = functional.linear(given, weight)
    expected = ACTIVATIONS[activation](wide[:, :size]) * wide[:, size:]
    torch.testing.assert_close(gated.gate(wide, activation), expected, rtol=1e-5, atol=1e-6)
    found = gated.gated_linear(given, weight, activation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_of_a_gated_layer_depends_on_no_other(dtype: torch.dtype) -> None:
    given, weight = some(70, 144, dtype=dtype), some(96, 144, dtype=dtype, seed=1)
    with ordered_sums():
        every = gated.gated_linear(given, weight, Activation.SILU)
        for count in (1, 16, 17, 33):
            few = gated.gated_linear(given[-count:], weight, Activation.SILU)
            assert torch.equal(few, every[-count:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rows_attend_as_is_defined(
    layer: LayerGeometry, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of trees attend to prefixes of several chunks, and to none."""
    monkeypatch.setattr(attention, "attend", attend.attend)
    monkeypatch.setattr(attention, "TRIAL", ((0, 3), (95, 2), (330, 9)))
    assert attention.why_unsupported([layer], dtype, torch.device("cpu")) is None


def passed(
    segments: list[Segment], numbers: list[torch.Tensor], layer: LayerGeometry
) -> list[torch.Tensor]:
    """Return the attention results of sessions' rows, each with queries of its own, [rows, heads,
    size].
    """
    pages = 24
    layout = KVLayout(pages * PAGE, pages, block_rows(layer.repeat, torch.bfloat16))
    plan: RowPlan
    (plan,) = row_plans(segments, layout, exact=True, sizes=(16, 32, 64))
    stored = (pages + 1) * PAGE, layer.heads, layer.key_size
    keys, values = (some(*stored, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    query = torch.zeros(1, layer.heads * layer.repeat, plan.count, layer.key_size)
    fed = torch.cat(numbers)
    query[0, :, : len(fed)] = fed.transpose(0, 1)
    options = AttentionOptions(window=layer.window)
    found = attend.attend(plan, query.to(torch.bfloat16), keys, values, options)
    return list(found[: len(fed)].split([len(each) for each in numbers]))


@pytest.mark.parametrize("layer", [LAYERS[0], LayerGeometry(1, 16, 16, 2, window=100)], ids=str)
def test_a_row_has_the_same_bits_alone_and_in_company(layer: LayerGeometry) -> None:
    """A row is computed in a tree beside other sessions, and fed alone; its sums are those of a
    tensor core.
    """
    rng, segments, numbers = random.Random(0), list[Segment](), list[torch.Tensor]()
    used = 0
    for context, nodes in ((310, 9), (40, 1), (700, 5)):
        count = -(-(context + nodes) // PAGE)
        table = PageTable(rng.sample(range(used, used + count), count))
        used += count
        parents = tree.hang(1, [rng.randrange(-1, node) for node in range(nodes - 1)])
        segments.append(Segment(table, context, (0,) * nodes, parents, nodes))
        numbers.append(some(nodes, layer.heads * layer.repeat, layer.key_size, seed=10 + context))
    with ordered_sums():
        together = passed(segments, numbers, layer)
        for segment, own, rows in zip(segments, numbers, together, strict=True):
            alone = [
                passed(
                    [Segment(segment.table, segment.context, (0,), segment.parents[: node + 1], 1)],
                    [own[node : node + 1]],
                    layer,
                )[0]
                for node in range(len(own))
            ]
            assert torch.equal(torch.cat(alone), rows)
