"""What a model service requires of a device before it serves, as far as a machine without a device
can show.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu import panels
from tandem.engine.host import device_name, load_and_test
from tandem.engine.loading import load_model, runner_of
from tandem.engine.schedule.scheduler import ModelThread
from tandem.engine.schedule.warm_up import single_token_seconds
from tests.laws.machine import LIMITS
from tests.served import Pair

MakeModel = Callable[[str, int], Path]
CPU = torch.device("cpu")
PROGRAM = """
import json, os, sys
from pathlib import Path

import torch
from transformers import AutoConfig

from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import load_and_test
from tandem.engine.model.load import _read
from tandem.protos.errors import Unusable

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

def settings(device, mode):
    refusal = ""
    try:
        config = ModelServiceConfig(model=sys.argv[2], device=device, threads=1)
        load_and_test(config, exact=mode == "exact")
    except Unusable as error:
        refusal = str(error)
    product = torch.backends.cuda.matmul
    return {
        "refusal": refusal,
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
    }

folder = Path(sys.argv[1])
config = AutoConfig.from_pretrained(folder)
_read(folder, config, config.dtype)[0].to("meta")  # all that is imported on the way
before = own()
network = _read(folder, config, config.dtype)[0].to("cpu")
found = {"grown": own() - before, "weights": sum(each.nbytes for each in network.parameters())}
if not torch.cuda.is_available():
    found["settings"] = [
        settings(*each) for each in (("cpu", "exact"), ("cuda", "fast"), ("cuda", "exact"))
    ]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(embedded: Pair, make_model: MakeModel) -> dict[str, Any]:
    """Return what a process of its own finds: what loading a model takes, and PyTorch's settings
    after a service was started on a CPU, on a device in fast mode, and on a device in exact mode.
    """
    command = [sys.executable, "-c", PROGRAM, embedded.target, make_model("llama", 0)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_weights_go_from_files_to_a_device_through_no_memory_of_ours(found: dict[str, Any]) -> None:
    """Loaded weights still lie in the files; moving them to the device reads the files."""
    assert found["grown"] < found["weights"] / 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it would start")
def test_sums_are_kept_whole_on_a_device_that_is_to_be_exact_and_nowhere_else(
    found: dict[str, Any],
) -> None:
    """The setting takes effect before anything runs on the device."""
    on_cpu, *on_device = found["settings"]
    assert on_cpu["refusal"] == ""
    assert all("cannot be loaded on cuda" in said["refusal"] for said in on_device)
    for said, whole in zip(found["settings"], (False, False, True), strict=True):
        assert said["workspaces"] == ([":16:8", "1"] if whole else [None, None])
        assert said["split"] == [not whole] * 2 and said["rounded between"] == [not whole] * 2
        assert (said["float32"] == "ieee") == whole


@pytest.mark.parametrize("compiled", [True, False])
def test_a_model_that_goes_the_slow_way_is_warned_of_once(
    compiled: bool, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model goes the slow way if the compiled kernels are missing."""
    if compiled and panels.why_unsupported(torch.float32, CPU) is not None:
        pytest.skip("the kernels were not built")
    if not compiled:
        monkeypatch.setattr("tandem.engine.forward.cpu.panels.kernels", lambda: None)
    with capture_logs() as lines:
        config = ModelServiceConfig(model=make_model("llama", 0), threads=1)
        forward, _ = load_and_test(config, exact=False)
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["slow for its device"] * (not compiled)
    assert [line["problem"] for line in warnings] == [forward.problem] * (not compiled)
    assert compiled or "compiled kernels: " in forward.problem


@pytest.mark.parametrize(("left", "warned"), [(1 << 20, True), (1 << 40, False), (None, False)])
def test_more_memory_for_keys_and_values_than_there_is_left_is_said(
    left: int | None, warned: bool, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.engine.host.available", lambda: left)
    config = ModelServiceConfig(model=make_model("llama", 0), threads=1, kv_bytes="64MiB")
    with capture_logs() as lines:
        load_and_test(config, exact=True)
    said = [line for line in lines if line["log_level"] == "warning" and "left" in line]
    assert [line["left"] for line in said] == [left] * warned
    assert [line["exactness"] for line in lines if line["event"] == "model ready"] == ["exact"]


def test_a_pass_over_a_single_token_is_measured_before_the_first_request(embedded: Pair) -> None:
    """A new replica that has not run such a pass yet is compared with others, too."""
    loaded = load_model(ModelServiceConfig(model=embedded.draft, threads=1))
    runner, nothing = runner_of(loaded, 1024, exact=True), lambda _: None
    single_token = single_token_seconds(runner)
    assert single_token > 0
    assert runner.pool.allocate(1024), "it holds no memory"
    given = runner, runner.wait, LIMITS, nothing, nothing
    with ModelThread(*given, single_token=single_token) as thread:
        assert thread.progress.passes(0.0).light == single_token


def test_devices_that_were_never_tried_are_called_experimental() -> None:
    assert device_name(torch.device("cuda:1")) == "cuda:1, experimental"
    assert device_name(CPU) == "cpu"
