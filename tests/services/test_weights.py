"""The memory that weights take, compared to the numbers in the model's network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.engine.weights import weights_bytes
from tandem.models import TARGET
from tests.families import ARCHITECTURES

PADDING = 1.15  # panels of tiny layers are not full, and there are buffers


def numbers(folder: Path) -> tuple[int, int]:
    """Return the number of weights in transformers' model, and that of output embeddings tied to
    the input embeddings, which are held twice.
    """
    network: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = network.get_output_embeddings().weight  # type: ignore[operator]
    tied = outputs is network.get_input_embeddings().weight  # type: ignore[operator]
    return sum(each.numel() for each in network.parameters()), outputs.numel() * tied


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_weights_count_once_whatever_layers_they_lie_in(
    architecture: str, make_model: Callable[[str, int], Path]
) -> None:
    """The network has joined layers, experts, and layers with a weight of their own."""
    folder = make_model(architecture, 0)
    own, tied = numbers(folder)
    assert 4 * own <= weights_bytes(load(folder)) <= 4 * (own + tied) * PADDING


def test_narrow_weights_take_as_much_less() -> None:
    own, tied = numbers(TARGET)
    wide, half = (weights_bytes(load(TARGET, dtype)) for dtype in ("float32", "bfloat16"))
    assert 4 * own <= wide <= 4 * (own + tied) * PADDING
    assert wide / 2 <= half <= wide / 2 * PADDING


def test_keys_and_values_are_no_weights() -> None:
    model = load(TARGET)
    before = weights_bytes(model)
    runner = HFRunner(model, 1 << 16, exact=True)
    assert weights_bytes(runner.model) == before
