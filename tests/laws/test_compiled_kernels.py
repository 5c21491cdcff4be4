"""The kernels for CUDA devices, compiled for an H100 on a machine that has none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton cannot be imported, which compiles the kernels")

ROOT = Path(__file__).parents[2]
SHARED = 227 << 10  # bytes of shared memory that a block may have on an H100
# kernels whose products tensor cores compute in half precision
PRODUCTS = ("_gated_linear", "_linear_of_codes", "_attend_chunks")


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, Any]]:
    """Return the assembler's output for every kernel, in every type and shape."""
    words = [sys.executable, "-m", "tests.compiled"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long("compiles a hundred kernels")
def test_no_kernel_spills_registers_or_has_too_little_memory(kernels: list[dict[str, Any]]) -> None:
    assert len(kernels) > 100
    assert [each for each in kernels if each["spilled"] or each["shared"] > SHARED] == []


@pytest.mark.long("compiles a hundred kernels")
def test_half_precision_goes_through_tensor_cores_and_nothing_is_contracted(
    kernels: list[dict[str, Any]],
) -> None:
    """Contraction would round a product and a sum once instead of twice, and only in those variants
    of a kernel that the compiler contracts.
    """
    half = [each for each in kernels if each["dtype"] in ("torch.bfloat16", "torch.float16")]
    assert {each["kernel"] for each in half} > set(PRODUCTS)
    for each in half:
        assert each["fused"] == 0, each
        assert bool(each["wgmma"]) == (each["kernel"] in PRODUCTS), each
