"""Linear layers in panels are right, and batch-invariant with any number of threads and every
build.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.benchmarks.figures import machine
from tandem.engine.forward.cpu import panels
from tandem.engine.forward.cpu.builds import runnable
from tandem.engine.forward.cpu.kernels import Kernels, kernels
from tandem.engine.forward.cpu.panels import PanelLinear

SHAPES = [(1, 1), (31, 7), (96, 96), (200, 1100)]  # outputs, inputs
MOST = 500  # most rows of a layer, more than are kept at once
COUNTS = (*range(1, 14), 24, 25, 65, 480, 481)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_is_what_it_is_in_float64(
    shape: tuple[int, int], dtype: torch.dtype, build: Kernels
) -> None:
    torch.manual_seed(0)
    weight, bias, rows = some(*shape, dtype=dtype), some(shape[0], dtype=dtype), some(37, shape[1])
    rows = rows.to(dtype)
    for given in (bias, None):
        out = PanelLinear(weight, given)(rows)
        exact = rows.double() @ weight.double().t() + (0 if given is None else given.double())
        size = rows.double().abs() @ weight.double().abs().t() + 10
        assert out.dtype == dtype and out.shape == (37, shape[0])
        rounding = 1e-6 * size + ROUNDING[dtype] * exact.abs()
        assert ((out.double() - exact).abs() <= rounding).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_company_and_by_any_number_of_threads(
    shape: tuple[int, int], dtype: torch.dtype, build: Kernels
) -> None:
    torch.manual_seed(0)
    layer = PanelLinear(some(*shape, dtype=dtype), some(shape[0], dtype=dtype))
    rows = some(MOST, shape[1], dtype=dtype)
    every = layer(rows)
    for build.threads, counts in ((1, COUNTS), (3, (1, 13, MOST))):
        for count in counts:
            assert torch.equal(layer(rows[:count]), every[:count]), f"{count} rows"
            assert torch.equal(layer(rows[None, -count:])[0], every[-count:]), f"last {count}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_layers_at_once_give_the_bits_of_each_alone(
    dtype: torch.dtype, build: Kernels
) -> None:
    """Some of the layers have no rows, and there is one layer more than are kept at once; the test
    runs with several numbers of threads.
    """
    torch.manual_seed(0)
    counts = torch.tensor([0, 3, 1, 0, MOST, 17, 0])
    weights, biases = some(len(counts), 70, 34, dtype=dtype), some(len(counts), 70, dtype=dtype)
    rows, together = some(int(counts.sum()), 34, dtype=dtype), PanelLinear(weights, biases)
    layers = [PanelLinear(*given) for given in zip(weights, biases, strict=True)]
    split = zip(layers, rows.split(counts.tolist()), strict=True)
    expected = torch.cat([layer(own) for layer, own in split])
    for build.threads in (1, 2, 3):
        assert torch.equal(together(rows, counts.cumsum(0)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_product_that_is_not_rounded_is_rounded_by_its_user(
    dtype: torch.dtype, build: Kernels
) -> None:
    torch.manual_seed(0)
    layer, rows = PanelLinear(some(200, 1100, dtype=dtype), None), some(37, 1100, dtype=dtype)
    rounded = layer(rows)
    layer.rounded = False
    out = layer(rows)
    assert out.dtype == torch.float32 and not torch.equal(out, rounded.float())
    assert torch.equal(out.to(dtype), rounded)


def test_rows_that_are_no_numbers_harm_no_others(build: Kernels) -> None:
    layer, rows = PanelLinear(some(40, 300), None), some(9, 300)
    right = layer(rows)
    rows[3, 7], rows[5] = torch.nan, torch.inf
    out = layer(rows)
    healthy = [0, 1, 2, 4, 6, 7, 8]
    assert torch.equal(out[healthy], right[healthy])
    assert out[3].isnan().all() and not out[5].isfinite().any()


def test_a_layer_takes_rows_of_any_layout(build: Kernels) -> None:
    layer, rows = PanelLinear(some(40, 30), None), some(30, 8).t()
    assert torch.equal(layer(rows), layer(rows.contiguous()))
    assert layer(some(2, 3, 30)).shape == (2, 3, 40)
    assert layer(some(0, 30)).shape == (0, 40)


def test_what_kernels_do_not_take_is_said_in_a_line() -> None:
    cpu = torch.device("cpu")
    assert panels.why_unsupported(torch.float32, cpu) is None
    assert panels.why_unsupported(torch.float64, cpu) == "they do not support float64"
    assert panels.why_unsupported(torch.float32, torch.device("cuda")) == "they do not support cuda"


def test_rows_of_another_dtype_are_refused(build: Kernels) -> None:
    layer = PanelLinear(some(40, 30, dtype=torch.bfloat16), None)
    with pytest.raises(RuntimeError, match=r"rows of .* do not match a weight of"):
        layer(some(3, 30))


def test_a_build_of_other_sources_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.SOURCES", 1)
    assert kernels.__wrapped__() is None


def test_a_build_that_cannot_be_loaded_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt, best = tmp_path / "_avx512.so", next(runnable())
    spoilt.write_bytes(b"no library")
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.runnable", lambda: [spoilt, best])
    found = kernels.__wrapped__()
    assert found and best.name.startswith(f"_{found.name}.")
    monkeypatch.setattr("tandem.engine.forward.cpu.kernels.runnable", lambda: [spoilt])
    assert kernels.__wrapped__() is None


def test_without_a_compiler_there_are_none_and_figures_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    assert str(machine.facts(cpu)["kernels"]).endswith(" kernels")
    for module in (panels, machine):
        monkeypatch.setattr(module, "kernels", lambda: None)
    problem = panels.why_unsupported(torch.float32, cpu)
    assert problem and "no compiler was found" in problem
    assert machine.facts(cpu)["kernels"] == "no compiled kernels"
