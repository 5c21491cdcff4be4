"""Quantised models on a CUDA device, interpreted: their linear layers stay in codes. A stand-in of
the device's name is all that differs from it: rows are on the CPU, and so are all other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tandem import models
from tandem.engine.forward.cuda.coded_linear import CodedLinear
from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.model import linears
from tandem.engine.model.load import load
from tandem.engine.weights import weights_bytes
from tests.ggufs import MakeGGUF
from tests.interpreted import interpreted
from tests.services.test_quantised import PACKINGS, in_8_bits, logits, packed

MakeModel = Callable[[str, int], Path]
pytestmark = interpreted


def make_layers_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be loaded with the linear layers that they have on a CUDA device."""
    monkeypatch.setattr(linears.panels, "why_unsupported", lambda *_: "there is a GPU")
    monkeypatch.setattr(linears, "has_kernels", lambda _: True)


def coded(network: nn.Module) -> set[str]:
    """Return the last names of the layers whose weights are codes."""
    assert not any(isinstance(each, GroupedWeight) for each in network.parameters())
    found = {name for name, layer in network.named_modules() if isinstance(layer, CodedLinear)}
    return {name.rpartition(".")[2] for name in found}


@pytest.mark.parametrize("method", ["fp8", *PACKINGS])
def test_the_layers_of_a_checkpoint_stay_in_codes(
    method: str, make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layers_for_cuda(monkeypatch)
    folder = make_model("llama", 0)
    made = in_8_bits(folder, tmp_path) if method == "fp8" else None
    stored, plain = made or packed(folder, tmp_path, PACKINGS[method])
    model = load(stored)
    assert (model.quantised, model.grouped, model.kernels) == (method, True, "Triton")
    assert coded(model.network) >= {"inner", "outer", "whole"}
    assert torch.allclose(logits(stored), logits(plain), atol=1e-4)


def test_a_gguf_file_stays_in_codes_except_its_embeddings(
    make_gguf: MakeGGUF, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output layer shares its weight with the embeddings in the file."""
    file = make_gguf(models.DRAFT, "q8_0")
    on_cpu = logits(file)
    make_layers_for_cuda(monkeypatch)
    model = load(file)
    assert (model.numbers, model.kernels) == ("float32, weights in q8_0", "Triton")
    assert "lm_head" in coded(model.network)
    embeddings = model.network.get_input_embeddings().weight
    assert type(embeddings) is nn.Parameter
    assert weights_bytes(model) < 2 * embeddings.nbytes
    assert torch.allclose(logits(file), on_cpu, atol=1e-3)
