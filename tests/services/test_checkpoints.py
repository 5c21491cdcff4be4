"""Model directories of real users: a directory that cannot be served is refused with its name, in
one line.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine.config import ModelServiceConfig
from tandem.engine.model.dtypes import default_dtype
from tandem.engine.model.load import load
from tandem.protos.errors import Unusable
from tests.checkpoints import WEIGHTS, configure, refusal
from tests.families import REFUSED
from tests.served import Pair

MakeModel = Callable[[str, int], Path]


@pytest.mark.parametrize(("architecture", "words"), REFUSED.items())
def test_an_architecture_that_cannot_be_served_is_refused_by_name(
    architecture: str, words: str, make_model: MakeModel
) -> None:
    line = refusal(make_model(architecture, 0))
    assert line.startswith(f" cannot be served: {words}")
    assert "; choose one that is served, e.g. Llama," in line


@pytest.fixture
def llama(make_model: MakeModel, tmp_path: Path) -> Path:
    """Return a model directory that a test may spoil."""
    return Path(shutil.copytree(make_model("llama", 0), tmp_path / "llama"))


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


@pytest.mark.parametrize("method", ["bitsandbytes", "of tomorrow"])
def test_quantised_weights_are_refused_by_name(llama: Path, method: str) -> None:
    """The refusal does not depend on which packages for such weights are installed."""
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
    """With `native`, the kernels compute in bfloat16; no CPU here computes in float16."""
    build = None if native is None else SimpleNamespace(bf16_pairs=native)
    configure(llama, dtype=saved)
    with monkeypatch.context() as patched:
        patched.setattr("tandem.engine.model.dtypes.kernels", lambda: build)
        own = load(llama, ModelServiceConfig(model=llama).dtype).dtype
    assert own == (torch.bfloat16 if saved == "bfloat16" and native else torch.float32)
    assert default_dtype(saved or "float32", "cuda:1") == (saved or "float32")


def test_nothing_changes_for_the_embedded_pair(embedded: Pair) -> None:
    """The pair was saved in float16 to be small, and is served in float32."""
    for folder in (embedded.target, embedded.draft):
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float16"
        assert load(folder).dtype == torch.float32


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(Unusable, match="'float64' is not one of auto, float32, bfloat16, float16"):
        load(llama, "float64")
