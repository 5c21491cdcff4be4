"""Mistakes, made in the past or possible, that tests plant in a correct forward pass: each
docstring says what the mistake spoils, and it spoils nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AutoModelForCausalLM

from tandem.engine.cache.pages import PAGE, PageTable
from tandem.engine.cache.pool import SlotIndex
from tandem.engine.forward import attention, tiles
from tandem.engine.forward.cpu.panels import GroupedPart, PanelLinear
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.forward.gated import GatedMLP
from tandem.engine.forward.library_linears import PackedLinear
from tandem.engine.forward.tiles import Tile
from tandem.engine.model.linears import MergedLinear
from tandem.engine.program.instructions import Step
from tests.services.plant import Plant, spoil_paths, spoil_rows, spoil_tables, turn

CUT = 96
PLACE = 150  # the position of one token
LAYER = "model.layers.1"


Fault = Callable[[Plant], None]


def a_mask_off_by_one_behind_96(plant: Plant) -> None:
    """A row does not see its own key."""

    def tile(*given: Any, **options: Any) -> Tile:
        made = Tile(*given, **options)
        if made.allowed is not None:
            own, every = made.row_positions[:, None], made.key_positions
            made.allowed = made.allowed & ((own < CUT) | (every != own))
        return made

    plant.patch.setattr(tiles, "Tile", tile)

    def shorter(rows: RowPlan) -> None:
        rows.counts.view(-1, 2)[:, 0] -= (rows.positions[0] >= CUT).int()

    spoil_rows(plant, shorter)

    def nearer(plan: PathPlan) -> None:
        plan.paths.prefixes[:] -= (plan.positions[0, : plan.count] >= CUT).long()

    spoil_paths(plant, nearer)


def a_forgotten_window(plant: Plant) -> None:
    """The window is missing in all layers."""
    layers = [module for module in plant.network.modules() if hasattr(module, "sliding_window")]
    for layer in layers:
        layer.sliding_window = None
    assert layers


def swapped_layers(plant: Plant) -> None:
    """Keys and values are made with each other's weights, in one layer."""
    keys, values = (f"{LAYER}.self_attn.{name}_proj" for name in "kv")
    first, second = (plant.network.get_submodule(name) for name in (keys, values))
    plant.network.set_submodule(keys, second)
    plant.network.set_submodule(values, first)


def swapped_gates(plant: Plant) -> None:
    """The gate and the gated projection are swapped, in one layer."""
    whole = plant.network.get_submodule(f"{LAYER}.mlp")
    if isinstance(whole, GatedMLP):
        right = whole.inner.forward
        size = whole.outer.in_features
        plant.patch.setattr(whole.inner, "forward", lambda rows: right(rows).roll(size, -1))
        return
    gate, up = (f"{LAYER}.mlp.{name}_proj" for name in ("gate", "up"))
    first, second = (plant.network.get_submodule(name) for name in (gate, up))
    plant.network.set_submodule(gate, second)
    plant.network.set_submodule(up, first)


def positions_off_by_one_behind_96(plant: Plant) -> None:
    """Positions after 96 are those of a text in which one token was left out there."""
    turn(plant, lambda positions: positions + (positions >= CUT))


def a_wrong_rope_row(plant: Plant) -> None:
    """One token has the rotation of the next one."""
    turn(plant, lambda positions: positions + (positions == PLACE))


def a_key_that_is_not_written(plant: Plant) -> None:
    """The last key of a piece is not written; its slot keeps the old content."""
    store = attention.store_rows

    def short(layer: torch.Tensor, places: SlotIndex, new: torch.Tensor) -> None:
        if isinstance(places, slice) and places.stop - places.start > 9:
            places, new = slice(places.start, places.stop - 1), new[:-1]
        store(layer, places, new)

    plant.patch.setattr(attention, "store_rows", short)
    of = Step.of

    def wrong(plan: PathPlan) -> Step:
        step = of(plan)
        if len(step.kept[-1]) > 9:
            stored = step.kept[-1].clone()
            stored[-1] = plant.forward.pool.positions - 1  # of nobody
            step.kept, step.stored = (*step.kept, stored), stored.data_ptr()
        return step

    plant.patch.setattr(Step, "of", wrong)

    def elsewhere(rows: RowPlan) -> None:
        rows.slots[rows.positions[0] == PLACE] = plant.forward.pool.positions

    spoil_rows(plant, elsewhere)


def keys_that_were_not_moved(plant: Plant) -> None:
    """The keys of an accepted branch stay where the draft was."""
    plant.patch.setattr(plant.forward.pool, "compact", lambda *_: None)


def keys_moved_to_the_place_behind(plant: Plant) -> None:
    """The keys of an accepted branch move one slot too far."""
    compact = plant.forward.pool.compact

    def farther(table: PageTable, start: int, path: list[int]) -> None:
        if path != list(range(len(path))):
            compact(table, start, [0, *path])

    plant.patch.setattr(plant.forward.pool, "compact", farther)


def a_scale_of_98_percent_in_a_head(plant: Plant) -> None:
    """The scale is wrong in one head of one layer."""

    def scaled(module: nn.Module, *given: Any, **options: Any) -> tuple[torch.Tensor, None]:
        # the output has the shape [1, rows, heads, size]
        output, _ = attention.attention(module, *given, **options)
        if module.layer_idx == 1:
            output[:, :, 1] *= 0.98
        return output, None

    plant.patch.setitem(AttentionInterface._global_mapping, attention.NAME, scaled)


def a_wrong_row_in_packed_weights(plant: Plant) -> None:
    """One output of one layer is computed with the weights of the next."""
    name = f"{LAYER}.mlp.down_proj"
    files: Any = AutoModelForCausalLM.from_pretrained(plant.folder, dtype=plant.forward.model.dtype)
    weight = files.get_submodule(name).weight.detach().clone()
    weight[5] = weight[6]
    whole = plant.network.get_submodule(f"{LAYER}.mlp")
    layer = whole.outer if isinstance(whole, GatedMLP) else whole.down_proj
    if isinstance(layer, PanelLinear):
        layer.parts = PanelLinear(weight, None).parts
    elif isinstance(layer, PackedLinear):
        layer.packed = PackedLinear(weight, None).packed
    else:
        layer.weight = nn.Parameter(weight, requires_grad=False)


def a_scale_of_97_percent_in_a_group(plant: Plant) -> None:
    """One group of the weights of one output, in panels of 8 or 4 bits, has another scale."""
    whole = plant.network.get_submodule(f"{LAYER}.mlp")
    (part,) = whole.outer.parts
    assert isinstance(part, GroupedPart)
    with torch.inference_mode():
        part.panels.scales[0, 1, 0, 3] *= 0.97


def a_forgotten_bias(plant: Plant) -> None:
    """The bias of the queries is missing in one layer."""
    layer = plant.network.get_submodule(f"{LAYER}.self_attn.q_proj")
    whole = layer._joined.whole if isinstance(layer, MergedLinear) else layer
    bias = whole.bias.clone()
    bias[: layer.out_features] = 0
    if isinstance(whole, PanelLinear):
        whole.parts[0].bias = bias
    else:
        whole.bias = nn.Parameter(bias, requires_grad=False)


def a_neighbours_keys(plant: Plant) -> None:
    """In a batch, every session reads from the first session's first page on."""
    count = plant.forward.pool.positions // PAGE

    def together(tables: list[list[int]]) -> None:
        for own in tables:
            own[:] = ((tables[0][0] + number) % count for number in range(len(own)))

    spoil_tables(plant, together)


def a_wrong_page(plant: Plant) -> None:
    """Two pages of a session are swapped."""

    def exchange(tables: list[list[int]]) -> None:
        for own in tables:
            own[1:3] = own[1:3][::-1]

    spoil_tables(plant, exchange)


def a_page_of_another_session(plant: Plant) -> None:
    """In a batch, one page of every session is the first session's."""

    def lend(tables: list[list[int]]) -> None:
        for own in tables:
            own[1:2] = tables[0][1:2]

    spoil_tables(plant, lend)


def a_replay_with_stale_geometry(plant: Plant) -> None:
    """A replay reads the pieces of prefixes that the captured pass had."""
    # keeps the objects alive, so that no id is given twice
    known, copied = dict[int, RowPlan](), RowPlan.copy_from

    def once(rows: RowPlan, other: RowPlan) -> None:
        rows.longs.copy_(other.longs) if id(rows) in known else copied(rows, other)
        known[id(rows)] = rows

    plant.patch.setattr(RowPlan, "copy_from", once)


FAULTS: tuple[Fault, ...] = (
    a_mask_off_by_one_behind_96,
    swapped_layers,
    swapped_gates,
    positions_off_by_one_behind_96,
    a_wrong_rope_row,
    a_key_that_is_not_written,
    keys_that_were_not_moved,
    keys_moved_to_the_place_behind,
    a_scale_of_98_percent_in_a_head,
    a_wrong_row_in_packed_weights,
    a_forgotten_bias,
    a_neighbours_keys,
    a_wrong_page,
    a_page_of_another_session,
)
