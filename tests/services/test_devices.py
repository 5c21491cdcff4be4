"""What a model service asks of a device before it serves, as far as a machine without one tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from tandem.benchmarks.figures.emulation import emulated
from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu import panels
from tandem.engine.forward.cuda import flash
from tandem.engine.host import device_name, load_and_test
from tandem.engine.model.load import default_dtype, load
from tests.conftest import Pair

MakeModel = Callable[[str, int], Path]
CPU = torch.device("cpu")
SETTINGS = """
import json, os, sys, torch
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import load_and_test
from tandem.protos.errors import Unusable
try:
    config = ModelServiceConfig(model=sys.argv[1], device=sys.argv[2])
    load_and_test(config, exact=sys.argv[3] == "exact")
except Unusable as error:
    print(error, file=sys.stderr)
product = torch.backends.cuda.matmul
print(json.dumps({
    "workspaces": [
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"), os.environ.get("CUBLASLT_WORKSPACE_SIZE"),
    ],
    "split": [
        product.allow_fp16_reduced_precision_reduction_split_k,
        product.allow_bf16_reduced_precision_reduction_split_k,
    ],
    "rounded between": [
        product.allow_fp16_reduced_precision_reduction,
        product.allow_bf16_reduced_precision_reduction,
    ],
    "float32": product.fp32_precision,
}))
"""
LOADING = """
import sys
from pathlib import Path
from tandem.engine.model.load import _read
from transformers import AutoConfig
import torch

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

folder = Path(sys.argv[1])
config = AutoConfig.from_pretrained(folder)
_read(folder, config, config.dtype, torch.device("meta"))  # all that is imported on the way
before = own()
network, _ = _read(folder, config, config.dtype, torch.device("cpu"))
print(own() - before, sum(weight.nbytes for weight in network.parameters()))
"""


def run(program: str, *words: object) -> tuple[str, str]:
    """A program in a process of its own: what it printed, and its errors."""
    command = (sys.executable, "-c", program, *map(str, words))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it would start")
@pytest.mark.parametrize(
    ("device", "mode", "whole"),
    [("cuda", "exact", True), ("cuda", "fast", False), ("cpu", "exact", False)],
)
def test_sums_are_kept_whole_on_a_device_that_is_to_be_exact(
    device: str, mode: str, whole: bool, embedded: Pair
) -> None:
    """Before anything runs there, and in no other process."""
    out, refusal = run(SETTINGS, embedded.target, device, mode)
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert ("cannot be loaded on cuda" in refusal) == (device == "cuda")
    assert said["workspaces"] == ([":16:8", "1"] if whole else [None, None])
    assert said["split"] == [not whole] * 2 and said["rounded between"] == [not whole] * 2
    assert (said["float32"] == "ieee") == whole


def test_the_kernel_is_called_as_the_operator_wants_it_and_never_splits_a_run() -> None:
    """The operator of the installed torch, with its own schema; spelled out for a CPU."""
    assert flash.NO_SPLIT == {"num_splits": 1}
    layers = [LayerGeometry(3, size, size) for size in (16, 64, 128)]
    with emulated():
        assert flash.why_unsupported(layers, torch.bfloat16, CPU) is None
    assert "CPU" in (flash.why_unsupported(layers, torch.bfloat16, CPU) or "")


def test_who_says_no_dtype_gets_the_checkpoints_own_but_on_a_cpu(
    make_model: MakeModel, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(make_model("llama", 0), tmp_path / "llama"))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"dtype": "bfloat16"}))
    config = ModelServiceConfig(model=folder)
    assert load(folder, config.dtype, config.device).dtype == torch.float32
    assert load(folder, "auto").dtype == torch.bfloat16
    assert default_dtype("cuda:1") == "auto" and default_dtype("cpu") == "float32"


def test_a_model_that_goes_the_slow_way_is_warned_of_once(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here for want of a compiler; on a device, of a window, say."""
    monkeypatch.setattr("tandem.engine.forward.cpu.panels.kernels", lambda: None)
    with capture_logs() as lines:
        forward, _ = load_and_test(ModelServiceConfig(model=embedded.draft), exact=False)
    (line,) = [line for line in lines if line["log_level"] == "warning"]
    assert line["event"] == "slow for its device"
    assert line["problem"] == forward.problem and "compiled kernels: " in forward.problem


@pytest.mark.skipif(panels.why_unsupported(torch.float32, CPU) is not None, reason="there is none")
def test_a_model_that_goes_the_fast_way_is_not_warned_of(embedded: Pair) -> None:
    with capture_logs() as lines:
        forward, _ = load_and_test(ModelServiceConfig(model=embedded.draft), exact=False)
    assert forward.problem is None
    assert not [line for line in lines if line["log_level"] == "warning"]


def test_devices_that_were_never_tried_are_called_experimental() -> None:
    assert device_name(torch.device("cuda:1")) == "cuda:1, experimental"
    assert device_name(CPU) == "cpu"


def test_weights_go_from_files_to_a_device_through_no_memory_of_ours(embedded: Pair) -> None:
    """Loaded they still lie in the files, so moving them reads them there."""
    out, _ = run(LOADING, embedded.target)
    grown, weights = map(int, out.split())
    assert grown < weights / 4
