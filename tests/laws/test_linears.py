"""Linear layers in the CPU kernels: a row has the same bits whether layers are joined or not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.cpu.panels import PanelLinear
from tandem.engine.model.linears import MergedLinear, merge, recording_inputs, replace, replacement

WIDTH, WIDER = 96, 1100
ROWS = range(1, 65)

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


class Block(nn.Module):
    """A block with two layers on the same rows, two with different biases, and one that is called
    twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDER), nn.Linear(WIDTH, WIDER)
        self.plain, self.biased = nn.Linear(WIDER, WIDTH, bias=False), nn.Linear(WIDER, WIDTH)
        self.again = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        wide = self.left(rows) * self.right(rows)
        narrow = self.plain(wide) + self.biased(wide)
        result: torch.Tensor = self.again(narrow) + self.again(narrow)
        return result


def made(joined: bool) -> Any:
    """Return the same block each time, with its layers in panels."""
    torch.manual_seed(0)
    block = Block()
    with torch.inference_mode(), recording_inputs(block) as groups:
        block(torch.zeros(4, WIDTH))
    if joined:
        merge(block, groups, PanelLinear)
    replace(block, lambda layer: replacement(layer, PanelLinear))
    return block


def test_layers_on_the_same_rows_are_joined_where_they_can_be() -> None:
    """Layers of which only one has a bias, and layers that are called twice, are not joined."""
    kinds = {name: type(layer) for name, layer in made(joined=True).named_children()}
    joined = {name for name, kind in kinds.items() if kind is MergedLinear}
    assert joined == {"left", "right"}
    assert set(kinds.values()) == {MergedLinear, PanelLinear}


@torch.inference_mode()
def test_a_row_has_the_same_bits_joined_or_not_in_any_company() -> None:
    """The test uses up to 64 rows, and layers that are longer than the kernels' blocks."""
    rows = torch.randn(1, ROWS[-1], WIDTH)
    joined, separate = made(joined=True), made(joined=False)
    every = separate(rows)
    for count in ROWS:
        assert torch.equal(joined(rows[:, :count]), every[:, :count])
        assert torch.equal(separate(rows[:, :count]), every[:, :count])


@torch.inference_mode()
def test_joined_layers_may_be_asked_in_any_order_and_for_other_rows() -> None:
    """An answer contains nothing of other rows."""
    block, separate = made(joined=True), made(joined=False)
    one, other = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    for name, rows in [*product(("left", "right"), (one, other)), ("left", one)]:
        expected = getattr(separate, name)(rows)
        assert torch.equal(getattr(block, name)(rows), expected)


def test_a_layer_with_two_names_is_laid_out_once() -> None:
    shared = nn.Linear(WIDTH, WIDTH)
    network = nn.ModuleDict({"one": nn.Sequential(shared), "other": nn.Sequential(shared)})
    replace(network, lambda layer: replacement(layer, PanelLinear))
    one, other = network.get_submodule("one.0"), network.get_submodule("other.0")
    assert type(one) is PanelLinear and one is other
