"""The benchmark for devices, run by emulation: it needs few packages, checks exactness first, and
writes all results.
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
from transformers import AutoModelForCausalLM

from tandem.benchmarks import gpu
from tandem.benchmarks.figures import checks, emulation
from tandem.engine.forward.cuda import attention
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.model.load import HFModel, load
from tandem.engine.runner import AttentionBackend, HFRunner
from tandem.protos.errors import Unusable

MakeModel = Callable[[str, int], Path]
pytestmark = pytest.mark.long("runs a benchmark")
ABSENT = (
    *("typer", "click", "rich", "structlog", "prometheus_client", "grpc", "google", "ray"),
    *("pydantic", "pydantic_settings", "accelerate"),
)
LEAN = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # as on a machine where they are not installed
from tandem.benchmarks.gpu import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def model(make_model: MakeModel) -> HFModel:
    return load(make_model("llama", 0))


def test_with_pytorch_and_transformers_alone_it_checks_measures_and_writes(
    make_model: MakeModel, tmp_path: Path
) -> None:
    folder, file = make_model("llama", 0), tmp_path / "figures.json"
    words = (folder, "--device", "cpu", "--repetitions", "1", "--json", file)
    done = subprocess.run([sys.executable, "-c", LEAN, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    written = json.loads(file.read_text())
    (found,) = written["checks"]
    assert found["exact"] and found["replayed_as_launched"]
    assert max(found["off"].values()) < 1e-4 and set(found["off"]) == set(gpu.SYSTEMS)
    steps = [row for row in written["rows"] if row["system"] != "floor"]
    assert len(steps) == (len(gpu.SYSTEMS) + 1) * len(gpu.FEEDS)
    assert all(row["milliseconds"] > 0 for row in steps)
    assert written["passes"] == []  # the result of a device alone
    assert {"torch", "transformers", "processor", "device"} <= set(written["machine"])
    assert written["title"] in done.stdout and "times mean nothing" in written["title"]
    assert "exact, passes of 16," in done.stdout and "x transformers" in done.stdout


def stale(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    """Return a capture whose replays ignore what is fed later."""
    logits = run().clone()
    return lambda: None, logits


def failing(run: Callable[[], torch.Tensor]) -> Any:
    """Return a capture that always fails."""
    raise RuntimeError("operation not permitted when stream is capturing")


def test_a_failed_check_ends_it_without_figures(
    make_model: MakeModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "figures.json"
    monkeypatch.setattr(emulation, "capture", failing)
    with pytest.raises(SystemExit, match=r"error: a check failed: .* cannot be captured"):
        gpu.main([str(make_model("llama", 0)), "--device", "cpu", "--json", str(file)])
    assert not file.exists() and capsys.readouterr().out == ""


def test_a_replay_of_what_was_fed_before_is_noticed(
    model: HFModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with emulation.emulated():
        launched, replayed = (
            HFRunner(model, checks.room_for(model), exact=False, backend=AttentionBackend.ROWS)
            for _ in "12"
        )
        monkeypatch.setattr(emulation, "capture", stale)
        with pytest.raises(Unusable, match="a replayed pass gives other logits"):
            checks.replays(launched, emulation.replaying(replayed))


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_logits_that_are_not_those_of_transformers_are_noticed(
    wrong: float, model: HFModel, make_model: MakeModel
) -> None:
    network = AutoModelForCausalLM.from_pretrained(make_model("llama", 0), dtype=torch.float32)
    forward = HFRunner(model, checks.room_for(model))
    assert checks.right({"tiles": forward}, network)["tiles"] < 1e-4
    network.lm_head.weight.data[:, 3] += wrong
    with pytest.raises(Unusable, match="a check failed: tiles: logits differ"):
        checks.right({"tiles": forward}, network)


def test_rows_that_depend_on_their_company_are_noticed(
    model: HFModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is as small as one of rounding."""
    spelled_out = attention.definition

    def batch_variant(rows: RowPlan, *given: Any) -> torch.Tensor:
        return spelled_out(rows, *given) * (1 + 1e-6 * int(rows.counts.count_nonzero() % 2))

    monkeypatch.setattr(attention, "definition", batch_variant)
    with emulation.emulated():
        forward = HFRunner(model, checks.room_for(model), backend=AttentionBackend.ROWS)
        with pytest.raises(Unusable, match="a check failed: not exact"):
            checks.exact(forward, "llama")
