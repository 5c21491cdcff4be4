"""A grown model is the same model, only larger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tandem import models
from tandem.models.grow import TOLERANCE, Grown, Shape, difference, grow, load
from tandem.protos.errors import Unusable
from tests import reference

SHAPE = Shape(
    hidden_size=160,
    num_attention_heads=8,
    num_key_value_heads=4,
    intermediate_size=400,
    num_hidden_layers=4,
)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Grown]:
    """Return the embedded draft model, a little larger, and the messages about it."""
    out = tmp_path_factory.mktemp("grown")
    return out, grow(models.DRAFT, out, SHAPE)


@pytest.fixture(scope="module")
def pair(grown: tuple[Path, Grown]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return the model and the grown one, as transformers loads them."""
    small, large = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        for folder in (models.DRAFT, grown[0])
    )
    return small, large


def test_every_text_stays_the_same(pair: tuple[PreTrainedModel, PreTrainedModel]) -> None:
    small, large = pair
    for start in (5, 900):
        assert reference.generate(large, [start], 20) == reference.generate(small, [start], 20)


def test_the_size_is_the_one_that_was_asked_for_and_all_of_it_is_in_use(
    grown: tuple[Path, Grown], pair: tuple[PreTrainedModel, PreTrainedModel]
) -> None:
    small, large = pair
    assert {name: getattr(large.config, name) for name in Shape.__slots__} == {
        name: getattr(SHAPE, name) for name in Shape.__slots__
    }
    assert large.config.head_dim == small.config.head_dim
    assert large.num_parameters() == grown[1].parameters > 1.5 * small.num_parameters()
    added = large.model.layers[-1]
    for part in (added.self_attn.q_proj, added.self_attn.v_proj, added.mlp.up_proj):
        assert (part.weight != 0).all(), "it is not idle"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (grown[0] / name).read_bytes() == (models.DRAFT / name).read_bytes()


def test_another_function_is_noticed(grown: tuple[Path, Grown]) -> None:
    small, large = load(models.DRAFT), load(grown[0])
    assert difference(small, large) == grown[1].difference <= TOLERANCE
    with torch.no_grad():
        large.model.layers[-1].self_attn.o_proj.weight[0, 0] = 0.1
    assert difference(small, large) > TOLERANCE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hidden_size": 120}, "its hidden_size is 128, more than 120"),
        ({"num_hidden_layers": 1}, "its num_hidden_layers is 2, more than 1"),
        ({"num_key_value_heads": 8}, "8 and 8 heads are not in the ratio of its 4 and 2 heads"),
        ({"hidden_size": 161}, "a width of 161 is not a multiple of 8 heads"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, int], reason: str
) -> None:
    with pytest.raises(Unusable, match=reason):
        grow(models.DRAFT, tmp_path / "out", replace(SHAPE, **change))
    assert not (tmp_path / "out").exists()


def test_only_a_llama_grows(tmp_path: Path, make_model: Callable[[str, int], Path]) -> None:
    with pytest.raises(Unusable, match="it is a gpt2, not a llama"):
        grow(make_model("gpt2", 0), tmp_path, SHAPE)
    with pytest.raises(Unusable, match="has no config"):
        grow(tmp_path, tmp_path / "out", SHAPE)
    with pytest.raises(Unusable, match="in place"):
        grow(models.DRAFT, models.DRAFT, SHAPE)
