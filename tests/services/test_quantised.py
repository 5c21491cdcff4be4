"""Checkpoints with weights of 8 and 4 bits are served as the numbers that they stand for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.engine.weights import weights_bytes
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tests.checkpoints import KEYS, WEIGHTS, configure, refusal
from tests.packing import Packed, Shape, in_awq, in_gptq, in_words

MakeModel = Callable[[str, int], Path]
BLOCK = 32  # rows and columns of a block of 8-bit weights
# the values of float4; the other half is negative
HALF_BYTES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
TEXT = tuple(range(7, 107))


@pytest.fixture
def llama(make_model: MakeModel, tmp_path: Path) -> Path:
    """Return a model directory that a test may spoil."""
    return Path(shutil.copytree(make_model("llama", 0), tmp_path / "llama"))


def rewritten(folder: Path, to: Path, weights: dict[str, torch.Tensor], method: str = "") -> Path:
    """Write a model directory with other weights."""
    shutil.copytree(folder, to)
    save_file(weights, to / WEIGHTS, {"format": "pt"})
    if method:
        configure(to, quantization_config={"quant_method": method})
    return to


def in_8_bits(folder: Path, to: Path) -> tuple[Path, Path]:
    """Write a model with weights as DeepSeek's and Qwen's checkpoints store them; return the
    numbers that they stand for.
    """
    files: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        files[name] = numbers[name] = weight
        if "proj" in name:
            rows, columns = weight.shape
            blocks = weight.view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
            scales = blocks.abs().amax((1, 3), keepdim=True) / 448
            rounded = (blocks / scales).to(torch.float8_e4m3fn)
            files[name] = rounded.view(rows, columns)
            files[f"{name}_scale_inv"] = scales[:, 0, :, 0].clone()
            numbers[name] = (rounded.float() * scales).view(rows, columns)
    return rewritten(folder, to / "fp8", files, "fp8"), rewritten(folder, to / "plain", numbers)


def in_4_bits(folder: Path, to: Path) -> tuple[Path, Path]:
    """Write a model with experts as gpt-oss stores them; return the numbers that they stand for."""
    torch.manual_seed(0)
    values = torch.tensor([*HALF_BYTES, *(-value for value in HALF_BYTES)])
    files: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = weight.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(118, 122, blocks.shape[:-1], dtype=torch.uint8)
            pairs = torch.stack([values[(blocks & 15).long()], values[(blocks >> 4).long()]], -1)
            exact = pairs.flatten(3) * torch.exp2(scales.float() - 127)[..., None]
            files |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            numbers[name] = exact.view(experts, outputs, inputs).transpose(1, 2).contiguous()
        else:
            files[name] = numbers[name] = weight
    return rewritten(folder, to / "mxfp4", files, "mxfp4"), rewritten(folder, to / "plain", numbers)


def logits(folder: Path) -> torch.Tensor:
    forward = HFRunner(load(folder), 512)
    table = forward.pool.allocate(len(TEXT))
    assert table
    return forward([Segment(table, 0, TEXT, tree.chain(len(TEXT)), len(TEXT))])[0]


@pytest.mark.parametrize(
    ("family", "made"), [("llama", in_8_bits), ("gpt_oss", in_4_bits)], ids=["fp8", "mxfp4"]
)
def test_the_logits_are_those_of_the_numbers_that_the_weights_stand_for(
    family: str,
    made: Callable[[Path, Path], tuple[Path, Path]],
    make_model: MakeModel,
    tmp_path: Path,
) -> None:
    quantised, plain = made(make_model(family, 0), tmp_path)
    expected = logits(plain)
    assert torch.equal(logits(quantised), expected)
    assert not torch.equal(logits(make_model(family, 0)), expected), "rounding can be seen"
    assert load(quantised).quantised == quantised.name and load(plain).quantised is None


PACKINGS: dict[str, Callable[[Shape], Packed]] = {
    "gptq": partial(in_gptq, bits=4, same=True),
    "awq": in_awq,
    "compressed-tensors": partial(in_words, bits=8, same=False),
}


def packed(folder: Path, to: Path, packing: Callable[[Shape], Packed]) -> tuple[Path, Path]:
    """Write a model with packed linear layers; return the numbers that they stand for."""
    files: dict[str, torch.Tensor] = {}
    numbers: dict[str, torch.Tensor] = {}
    config: dict[str, Any] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if "proj.weight" in name:
            tensors, config, numbers[name] = packing((weight.shape[0], weight.shape[1]))
            files |= {name.removesuffix("weight") + leaf: each for leaf, each in tensors.items()}
        else:
            files[name] = numbers[name] = weight
    stored = rewritten(folder, to / "packed", files)
    configure(stored, quantization_config=config)
    return stored, rewritten(folder, to / "plain", numbers)


@pytest.mark.parametrize("method", PACKINGS)
def test_packed_linear_layers_stay_packed_and_are_the_numbers_that_they_stand_for(
    method: str, make_model: MakeModel, tmp_path: Path
) -> None:
    stored, plain = packed(make_model("qwen2", 0), tmp_path, PACKINGS[method])
    model = load(stored)
    assert (model.quantised, model.grouped) == (method, True)
    assert f"weights in {method}" in model.numbers
    assert torch.equal(logits(stored), logits(plain))


def test_packed_layers_take_the_memory_of_their_codes(
    make_model: MakeModel, tmp_path: Path
) -> None:
    """A packed number takes 4 bits and its share of a scale instead of 32 bits, and nothing is held
    twice.
    """
    stored, plain = packed(make_model("llama", 0), tmp_path, PACKINGS["gptq"])
    linear = sum(
        each.numel() * 4 for name, each in load_file(plain / WEIGHTS).items() if "proj" in name
    )
    assert weights_bytes(load(plain)) - weights_bytes(load(stored)) > 0.75 * linear


def test_packed_layers_that_the_network_does_not_have_are_refused_by_name(
    llama: Path, tmp_path: Path
) -> None:
    stored, _ = packed(llama, tmp_path, in_awq)
    weights = load_file(stored / WEIGHTS)
    others = {name.replace("layers.1.mlp", "layers.1.moe"): each for name, each in weights.items()}
    save_file(others, stored / WEIGHTS, {"format": "pt"})
    assert "has quantised weights of model.layers.1.moe.down_proj, which is no" in refusal(stored)


def test_packed_layers_without_all_their_tensors_are_refused_by_name(
    llama: Path, tmp_path: Path
) -> None:
    stored, _ = packed(llama, tmp_path, in_awq)
    weights = load_file(stored / WEIGHTS)
    del weights[KEYS.replace("weight", "qzeros")]
    save_file(weights, stored / WEIGHTS, {"format": "pt"})
    name = KEYS.removesuffix(".weight")
    assert f"has weights of {name} that cannot be read: there is no qzeros" in refusal(stored)


@pytest.fixture
def spoilt(make_model: MakeModel, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a directory in 8 bits with some other weights, or without those
    that are None.
    """

    def make(**others: torch.Tensor | None) -> Path:
        folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
        weights = load_file(folder / WEIGHTS) | others
        kept = {name: each for name, each in weights.items() if each is not None}
        save_file(kept, folder / WEIGHTS, {"format": "pt"})
        return folder

    return make


@pytest.mark.parametrize("scales", [None, torch.ones(3, 2)], ids=["none", "of other blocks"])
def test_weights_in_8_bits_without_scales_that_fit_are_refused(
    scales: torch.Tensor | None, spoilt: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """Such weights would be loaded as if their bits were the numbers, or not at all."""
    with pytest.raises(Unusable, match=f"by fp8, but no matching scales for {KEYS}"):
        load(spoilt(**{f"{KEYS}_scale_inv": scales}))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("wanted", "saved"), [("bfloat16", torch.float32), ("float32", torch.bfloat16)]
)
def test_all_weights_have_one_dtype_whatever_those_in_full_precision_were_saved_in(
    wanted: str, saved: torch.dtype, make_model: MakeModel, spoilt: Callable[..., Path]
) -> None:
    """Checkpoints in 8 bits store norms and embeddings in bfloat16."""
    weights = load_file(make_model("llama", 0) / WEIGHTS)
    full = {name: each.to(saved) for name, each in weights.items() if "proj" not in name}
    own = load(spoilt(**full), wanted)
    assert {each.dtype for each in own.network.parameters()} == {own.dtype}
    assert own.numbers == f"{wanted}, weights in fp8"


def test_one_scale_for_a_whole_weight_fits(spoilt: Callable[..., Path]) -> None:
    assert load(spoilt(**{f"{KEYS}_scale_inv": torch.tensor(0.01)})).quantised == "fp8"


def test_what_cannot_be_read_is_said_in_a_line(spoilt: Callable[..., Path]) -> None:
    folder = spoilt()
    (folder / WEIGHTS).write_bytes(b"nothing of the kind")
    with pytest.raises(Unusable, match="LlamaForCausalLM has weights that cannot be read") as said:
        load(folder)
    assert "\n" not in str(said.value)


def test_words_that_are_no_configuration_are_refused(spoilt: Callable[..., Path]) -> None:
    folder = spoilt()
    configure(folder, quantization_config="small")
    with pytest.raises(Unusable, match=r"by small: get the checkpoint|cannot be loaded"):
        load(folder)
