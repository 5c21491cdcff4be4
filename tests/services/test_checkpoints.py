"""Model directories as people have them: what cannot be served is refused by name, in one line, and
weights in 8 and 4 bits are served as the numbers that they stand for.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import default_dtype, load
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable
from tests.families import REFUSED
from tests.served import Pair

MakeModel = Callable[[str, int], Path]
BLOCK = 32  # on either side, of a weight in 8 bits
HALF_BYTES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # and the same below zero
TEXT = tuple(range(7, 107))
WEIGHTS, KEYS = "model.safetensors", "model.layers.0.self_attn.k_proj.weight"


def refusal(folder: Path) -> str:
    """The line with which a directory is refused."""
    with pytest.raises(Unusable) as refused:
        load(folder)
    line = str(refused.value)
    assert line.startswith(str(folder))
    assert "\n" not in line
    return line.removeprefix(str(folder))


@pytest.mark.parametrize(("architecture", "words"), REFUSED.items())
def test_an_architecture_that_cannot_be_served_is_refused_by_name(
    architecture: str, words: str, make_model: MakeModel
) -> None:
    line = refusal(make_model(architecture, 0))
    assert line.startswith(f" cannot be served: {words}")
    assert "; choose one that is served, e.g. Llama," in line


@pytest.fixture
def llama(make_model: MakeModel, tmp_path: Path) -> Path:
    """A model directory to spoil."""
    return Path(shutil.copytree(make_model("llama", 0), tmp_path / "llama"))


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == " is not a model directory: it has no config.json"


def test_code_of_a_model_directory_is_never_run(llama: Path) -> None:
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    configure(llama, model_type="own", auto_map=code)
    (llama / "own.py").write_text("raise SystemExit('this ran')")
    assert "needs code from its directory, which is never run" in refusal(llama)


def test_weights_that_the_files_lack_are_not_made_up(llama: Path) -> None:
    weights = load_file(llama / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, llama / WEIGHTS, {"format": "pt"})
    lacking = "lack 1 weights of LlamaForCausalLM, e.g. model.layers.1.mlp.up_proj.weight"
    assert lacking in refusal(llama)


@pytest.mark.parametrize("method", ["gptq", "of tomorrow"])
def test_quantised_weights_are_refused_by_name(llama: Path, method: str) -> None:
    """Whatever packages that could read them happen to be there."""
    configure(llama, quantization_config={"quant_method": method, "bits": 4})
    problem = f"has weights quantised by {method}: get the checkpoint whose weights are not"
    assert f" cannot be served: LlamaForCausalLM {problem}" in refusal(llama)


@pytest.mark.parametrize("saved", ["float32", "bfloat16", None])
def test_auto_is_the_dtype_in_which_a_model_was_saved(llama: Path, saved: str | None) -> None:
    configure(llama, dtype=saved)
    assert load(llama, "auto").dtype == (torch.bfloat16 if saved == "bfloat16" else torch.float32)


@pytest.mark.parametrize("native", [True, False, None])
@pytest.mark.parametrize("saved", ["float32", "bfloat16", "float16", None])
def test_who_says_no_dtype_gets_the_checkpoints_own_where_the_cpu_has_it(
    llama: Path, saved: str | None, native: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels, if there are any, have bfloat16 `native`; float16 is a CPU's on none."""
    build = None if native is None else SimpleNamespace(pairs=native)
    configure(llama, dtype=saved)
    with monkeypatch.context() as patched:
        patched.setattr("tandem.engine.model.load.kernels", lambda: build)
        own = load(llama, ModelServiceConfig(model=llama).dtype).dtype
    assert own == (torch.bfloat16 if saved == "bfloat16" and native else torch.float32)
    assert default_dtype(saved or "float32", "cuda:1") == (saved or "float32")


def test_nothing_changes_for_the_embedded_pair(embedded: Pair) -> None:
    """It was saved in float16 to be small, and is served in float32."""
    for folder in (embedded.target, embedded.draft):
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
        assert load(folder).dtype == torch.float32


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(Unusable, match="'float64' is not one of auto, float32, bfloat16, float16"):
        load(llama, "float64")


def rewritten(folder: Path, to: Path, weights: dict[str, torch.Tensor], method: str = "") -> Path:
    """A model directory with other weights."""
    shutil.copytree(folder, to)
    save_file(weights, to / WEIGHTS, {"format": "pt"})
    if method:
        configure(to, quantization_config={"quant_method": method})
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


@pytest.fixture
def spoilt(make_model: MakeModel, tmp_path: Path) -> Callable[..., Path]:
    """Makes a directory in 8 bits with some other weights, or without those that are None."""

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
    """They would be loaded as if their bits were the numbers, or not at all."""
    with pytest.raises(Unusable, match=f"by fp8, but no scales that fit for {KEYS}"):
        load(spoilt(**{f"{KEYS}_scale_inv": scales}))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("wanted", "saved"), [("bfloat16", torch.float32), ("float32", torch.bfloat16)]
)
def test_all_weights_have_one_dtype_whatever_those_in_full_precision_were_saved_in(
    wanted: str, saved: torch.dtype, make_model: MakeModel, spoilt: Callable[..., Path]
) -> None:
    """Checkpoints in 8 bits keep norms and embeddings in bfloat16."""
    weights = load_file(make_model("llama", 0) / WEIGHTS)
    full = {name: each.to(saved) for name, each in weights.items() if "proj" not in name}
    own = load(spoilt(**full), wanted)
    assert {each.dtype for each in own.network.parameters()} == {own.dtype}
    assert own.numbers == f"{wanted}, dequantised from fp8"


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
