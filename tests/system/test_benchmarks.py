"""Every benchmark that the documents name runs to its end, at its smallest size."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tandem import models
from tandem.benchmarks import engine
from tandem.engine.forward.cpu.kernels import required_kernels
from tests.documents import PAGES, ROOT, code

SMALL = {
    "chaos": "--faults 3 --streams 2 --tokens 40 --verifiers 2 --kind kill --kind slow --seed 3",
    "alerts": "--clean 5 --fault verifier-killed",
    "acceptance": "--prompts 1 --max-new-tokens 8",
    "copying": "--prompts 1 --max-new-tokens 8",
    "engine": f"{models.TARGET} --repetitions 1",
    "equality": "--sequences 4 --tokens 8",
    "fuzz": "--requests 500 --seconds 60",
    "gaps": "--sessions 2 --prompt 200 --seconds 5",
    "goodput": "--worlds 2 --seeds 1",
    "kernels": "--repetitions 1",
    "passes": "--repetitions 1",
    "levels": "--repetitions 1",
    "links": "--round-trip 0 --at-once 1 --temperature 0 --tokens 8 --turns 1 --seconds 1",
    "options": "--requests 2",
    "orchestration": "--streams 1,20 --seconds 3",
    "overload": "--places 2 --seconds 4",
    "partitions": "--where verifier --way both --seconds 2.5",
    "rolling": "--updates 2 --clients 1 --tokens 20",
    "rules": "--prompts 1 --max-new-tokens 8",
    "sampling": "--vocabulary 1000 --sessions 1 --visited 1 --repetitions 1",
    "structured": "--schemas 1",
    "slow_drafter": "--streams 1 --rule reject --tokens 40 --turns 1",
    "tls": "--streams 1 --turns 1 --tokens 20",
    "throughput": "--prompts 1 --max-new-tokens 8 --no-ray",
}
ELSEWHERE = {
    "gpu": "tests/services/test_gpu_benchmark.py",
    "page": "tests/contracts/test_results.py",
}


def named() -> set[str]:
    """Return the benchmarks in the documents and the Makefile."""
    text = "\n".join(["\n".join(code(page)) for page in PAGES])
    text += (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"-m tandem\.benchmarks\.(\w+)", text))


def test_every_benchmark_that_is_named_is_run_by_a_test() -> None:
    assert named() == SMALL.keys() | ELSEWHERE.keys()


def test_a_step_of_the_engine_has_as_many_threads_as_those_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build, before = required_kernels(), torch.get_num_threads()
    monkeypatch.setattr(build, "threads", 1)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(
        engine, "measure", lambda *_: seen.append((build.threads, torch.get_num_threads()))
    )
    monkeypatch.setattr(engine, "publish", lambda *_: None)
    try:
        engine.main(models.TARGET, threads=3)
    finally:
        torch.set_num_threads(before)
    assert seen == [(3, 3)]


@pytest.mark.long("each benchmark starts several processes and measures for seconds")
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    if name == "alerts" and not shutil.which("prometheus"):
        pytest.skip("no prometheus here; `make tools` installs it")
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"tandem.benchmarks.{name}", *SMALL[name].split()]
    command += ["--json", str(file)]
    environment = os.environ | {"COLUMNS": "200"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    assert re.search(r"\d", run.stdout), "figures"
    assert json.loads(file.read_text(encoding="utf-8"))["rows"]
