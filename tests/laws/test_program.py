"""Programs of networks give the same bits as the network's own code, for any rows; a network that
this is impossible for has no program.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tandem.engine.forward.cpu.kernels import ElementType, Kernels, kernels
from tandem.engine.program.instructions import Operation, Place, Written
from tandem.engine.program.layout import View
from tandem.engine.program.stretch import ALIGNMENT, Stretch, allocate
from tandem.engine.program.tape import Unrecordable
from tests.laws.passes import differing, of_family

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LEFT = ["index", "PanelLinear", "select"]  # the output layer, for the rows whose logits are wanted
WHOLE = (  # families in which every layer becomes an instruction
    *("llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "glm4", "exaone4"),
    *("mistral_window", "ministral", "olmo2", "smollm3", "seed_oss", "helium", "hunyuan"),
)
BROKEN = (
    "gemma3",
    "deepseek_v3",
    "gpt_neox",
    "cohere",
    "phi",
    "granite",
    "gpt_oss",
    "mixtral",
)  # families with layers of their own
OWN_CODE = {"gpt2": "_local_scalar_dense", "llama4_text": "add_", "gemma4_text": "mul_"}

pytestmark = pytest.mark.skipif(kernels() is None, reason="the kernels were not built")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt_oss", "cohere"])
def test_a_program_gives_the_bits_of_the_network_by_any_build_and_threads(
    family: str, dtype: torch.dtype, build: Kernels
) -> None:
    assert not differing(of_family(family, dtype), build, 0)


@pytest.mark.parametrize("family", [*WHOLE, *BROKEN])
def test_a_program_gives_the_bits_of_every_family(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = kernels()
    assert build
    monkeypatch.setattr(build, "threads", 1)
    assert not differing(of_family(family, torch.bfloat16), build, 1)


@pytest.mark.parametrize("family", WHOLE)
def test_all_layers_of_a_family_are_one_call(family: str) -> None:
    program = of_family(family, torch.bfloat16).program()
    actions = [action for action, _ in program._actions]
    assert sum(isinstance(action, Stretch) for action in actions) == 1
    fused, operations = program.fused
    softcap = 3 if family == "gemma2" else 0
    assert operations - fused == len(LEFT) + softcap


@pytest.mark.parametrize("family", OWN_CODE)
def test_a_network_whose_code_looks_at_its_tensors_or_changes_them_keeps_it(family: str) -> None:
    with pytest.raises(Unrecordable, match=OWN_CODE[family]):
        of_family(family).program()


class Curious(nn.Module):
    """A norm whose result depends on the largest of all numbers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(rows)
        return out * 2 if bool((rows.abs() > 1e3).any()) else out


class Counting(Curious):
    """A layer that depends on how many rows there are."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(rows)
        return out * 2 if rows.shape[1] > 4 else out


class Changing(Curious):
    """A layer that changes, in place, what an earlier instruction has made."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(rows)
        return out.mul_(2)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Curious, "it calls"), (Counting, "other rows"), (Changing, "it calls aten.mul_")],
)
def test_a_network_whose_calls_depend_on_the_rows_keeps_its_code(
    kind: type[Curious], why: str
) -> None:
    scene = of_family("llama")
    first: Any = scene.network.get_decoder().layers[0]
    first.input_layernorm = kind(first.input_layernorm)
    with pytest.raises(Unrecordable, match=why):
        scene.program()


def test_a_layer_that_no_rule_takes_is_called_between_instructions() -> None:
    """The test includes a layer that computes something else for many rows."""
    scene = of_family("llama")
    for layer in scene.network.get_decoder().layers:  # type: ignore[union-attr]
        layer.mlp.outer = nn.Sequential(layer.mlp.outer, Rounder())
    program = scene.program()
    names = [type(action).__name__ for action, _ in program._actions]
    assert names.count("Stretch") == 3
    build = kernels()
    assert build and not differing(scene, build, 3)


class Rounder(nn.Module):
    """A layer of a class that no rule knows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.round(decimals=3) if rows.shape[1] > 12 else rows * 1


operations = st.sampled_from([Operation.LINEAR, Operation.ADD, Operation.COPY, Operation.ATTEND])
sizes_ = st.lists(st.integers(1, 300), min_size=1, max_size=12)


@given(sizes_, st.lists(operations, max_size=30), st.randoms(use_true_random=False))
def test_storages_that_are_needed_at_the_same_time_do_not_overlap(
    sizes: list[int], kinds: list[Operation], rng: random.Random
) -> None:
    nowhere = View(-1)
    known = dict(enumerate(sizes))
    written = [
        Written(
            *(kind, ElementType.FLOAT32, 1, 1, Place(rng.choice(range(len(sizes))), nowhere)),
            [Place(rng.choice(range(len(sizes))), nowhere) for _ in range(rng.randint(1, 3))],
        )
        for kind in kinds
    ]
    offsets, total = allocate(written, known)
    groups, group = list[int](), -1
    for place, kind in enumerate(kinds):
        joined = place and min(kind, kinds[place - 1]) >= Operation.NORM
        group += not joined
        groups.append(group)
    spans = dict[Any, tuple[int, int]]()
    for number, each in zip(groups, written, strict=True):
        for place in (each.result, *each.reads):
            spans[place.storage] = (spans.get(place.storage, (number, 0))[0], number)
    assert offsets.keys() == spans.keys()
    for one in spans:
        assert offsets[one] % ALIGNMENT == 0 and offsets[one] + known[one] <= total
        for other in spans:
            together = spans[one][0] <= spans[other][1] and spans[other][0] <= spans[one][1]
            apart = offsets[one] + known[one] <= offsets[other]
            apart |= offsets[other] + known[other] <= offsets[one]
            assert one == other or apart or not together
