"""Checkpoints in 8 and 4 bits: served as the numbers that they stand for, and said to be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import load
from tandem.engine.runner import HFRunner
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tandem.protos.transport import rpc
from tandem.verifier_service import service as verifier_service

MakeModel = Callable[[str, int], Path]
BLOCK = 32  # on either side, of a weight in 8 bits
HALF_BYTES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and the same below zero
TEXT = tuple(range(7, 107))
WEIGHTS = "model.safetensors"


def rewritten(folder: Path, to: Path, weights: dict[str, torch.Tensor], method: str = "") -> Path:
    """A model directory with other weights."""
    shutil.copytree(folder, to)
    save_file(weights, to / WEIGHTS, {"format": "pt"})
    if method:
        path = to / "config.json"
        path.write_text(
            json.dumps(
                json.loads(path.read_text()) | {"quantization_config": {"quant_method": method}}
            )
        )
    return to


def in_8_bits(folder: Path, to: Path) -> tuple[Path, Path]:
    """A model with weights as DeepSeek's and Qwen's checkpoints have them; what they stand for."""
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
    """A model with experts as gpt-oss has them; what they stand for."""
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
    kv_range = forward.pool.allocate(len(TEXT))
    assert kv_range
    return forward([Segment(kv_range, 0, TEXT, tree.chain(len(TEXT)), len(TEXT))])[0]


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


async def test_status_and_log_say_that_weights_were_dequantised(
    make_model: MakeModel, tmp_path: Path
) -> None:
    quantised, _ = in_8_bits(make_model("llama", 0), tmp_path)
    config = ModelServiceConfig(model=quantised, max_sessions=2)
    with capture_logs() as lines:
        async with (
            verifier_service.serving(config, CollectorRegistry()) as address,
            rpc.connect(address) as channel,
        ):
            described = await VerifierClient(channel).describe(10)
    assert described.dtype == "float32, dequantised from fp8"
    assert [line["dtype"] for line in lines if line["event"] == "model ready"] == [described.dtype]


@pytest.mark.parametrize("scales", [None, torch.ones(3, 2)], ids=["none", "of other blocks"])
def test_weights_in_8_bits_without_scales_that_fit_are_refused(
    scales: torch.Tensor | None,
    make_model: MakeModel,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """They would be loaded as if their bits were the numbers, or not at all."""
    folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
    weights = load_file(folder / WEIGHTS)
    name = "model.layers.0.self_attn.k_proj.weight"
    del weights[f"{name}_scale_inv"]
    save_file(weights | ({} if scales is None else {f"{name}_scale_inv": scales}), folder / WEIGHTS)
    with pytest.raises(Unusable, match=f"by fp8, but no scales that fit for {name}"):
        load(folder)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("saved", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("wanted", ["bfloat16", "float32"])
def test_all_weights_have_one_dtype_whatever_those_in_full_precision_were_saved_in(
    wanted: str, saved: torch.dtype, make_model: MakeModel, tmp_path: Path
) -> None:
    """Checkpoints in 8 bits keep norms and embeddings in bfloat16."""
    folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
    weights = load_file(folder / WEIGHTS)
    full = {name: each for name, each in weights.items() if "proj" not in name}
    weights |= {name: each.to(saved) for name, each in full.items()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    own = load(folder, wanted)
    assert {each.dtype for each in own.network.parameters()} == {own.dtype}
    assert own.numbers == f"{wanted}, dequantised from fp8"


def test_one_scale_for_a_whole_weight_fits(make_model: MakeModel, tmp_path: Path) -> None:
    folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
    weights = load_file(folder / WEIGHTS)
    weights["model.layers.0.self_attn.k_proj.weight_scale_inv"] = torch.tensor(0.01)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    assert load(folder).quantised == "fp8"


def test_what_cannot_be_read_is_said_in_a_line(make_model: MakeModel, tmp_path: Path) -> None:
    folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
    (folder / WEIGHTS).write_bytes(b"nothing of the kind")
    with pytest.raises(Unusable, match="LlamaForCausalLM has weights that cannot be read") as said:
        load(folder)
    assert "\n" not in str(said.value)


def test_words_that_are_no_configuration_are_refused(make_model: MakeModel, tmp_path: Path) -> None:
    folder, _ = in_8_bits(make_model("llama", 0), tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": "small"}))
    with pytest.raises(Unusable, match=r"by small: get the checkpoint|cannot be loaded"):
        load(folder)
