"""Every kernel for CUDA devices, compiled for a card that is absent: each kernel is called as
usual, and Triton's own JIT compiles what would be launched.

    TRITON_INTERPRET=0 python -m tests.compiled    prints a JSON object for each kernel
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward.cpu.kernels import Activation
from tandem.engine.forward.cuda.kernels import attend, codes, drawing, gated, norm, rotary
from tandem.engine.forward.cuda.rows import KVLayout, block_rows
from tandem.engine.forward.cuda.table import row_plans
from tandem.engine.forward.dense import AttentionOptions
from tandem.engine.forward.groups import Code, Groups
from tandem.engine.forward.segment import Segment

CARD, PTXAS_NAME = GPUTarget("cuda", 90, 32), "sm_90a"  # an H100
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
TYPES = (torch.bfloat16, torch.float16, torch.float32)
# numbers of query heads and key heads, and the size of a head
HEADS = ((8, 2, 64), (32, 8, 128), (4, 1, 256))
# types of codes, sizes of their groups, and factors of each group
CODES = ((Code.FLOAT8, 128, 1), (Code.BYTES, 32, 1), (Code.NIBBLES, 128, 2))
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compiled() -> list[Any]:
    """Yield a list; within the scope, each kernel that is called is added to it instead of
    launched.
    """
    found: list[Any] = []
    names = ("get_current_device", "get_current_stream", "get_current_target")
    values = (0, 0, CARD)
    here = {name: lambda *_, it=value: it for name, value in zip(names, values, strict=True)}
    driver.set_active(SimpleNamespace(**here))

    def dry(self: Any, grid: Any) -> Any:
        return lambda *args, **kwargs: found.append(
            self.run(*args, grid=grid, warmup=True, **kwargs)
        )

    JITFunction.__getitem__ = dry  # type: ignore[method-assign]
    return found


def call_all(dtype: torch.dtype) -> None:
    """Call every kernel with rows of a type, in the shapes of current models."""
    for size in (64, 2048, 4096):
        rows, scale = torch.zeros(5, size, dtype=dtype), torch.ones(size)
        norm.norm(rows, scale, 1e-5)
        norm.add_norm(rows, rows, scale, 1e-5)
    for count in (1, 16, 80, 128):
        rows, weight = torch.zeros(count, 2048, dtype=dtype), torch.zeros(2 * 4096, 2048).to(dtype)
        for activation in (Activation.SILU, Activation.GELU_TANH):
            gated.gated_linear(rows, weight, activation)
            gated.gate(torch.zeros(count, 2 * 4096, dtype=dtype), activation)
        for code, group, factors in CODES:
            stored = torch.zeros(4096, 2048, dtype=torch.uint8)
            groups = Groups(code, stored, torch.ones(4096, 2048 // group, factors))
            codes.linear(rows, codes.Codes.of(groups, dtype), None)
    for heads, shared, size in HEADS:
        query = torch.zeros(1, heads, 5, size, dtype=dtype)
        key = torch.zeros(1, shared, 5, size, dtype=dtype)
        cached = torch.zeros(1024, shared, size, dtype=dtype)
        angles, slots = torch.zeros(5, size, dtype=dtype), torch.arange(5)
        rotary.rotate_store(query, key, key, angles, angles, slots, cached, cached)
        layout = KVLayout(1024, 16, block_rows(heads // shared, dtype))
        segment = Segment(PageTable([*range(16)]), 300, (1, 2, 3, 4, 5), (-1, 0, 1, 2, 3), 5)
        (plan,) = row_plans([segment], layout, exact=True)
        for options in (
            AttentionOptions(),
            AttentionOptions(window=128, softcap=30.0, sinks=torch.zeros(heads, dtype=dtype)),
        ):
            attend.attend(plan, query, cached, cached, options)


def reports(kernels: list[Any]) -> Iterator[dict[str, Any]]:
    """Return the assembler's report on each kernel."""
    with TemporaryDirectory() as folder:
        source, result = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        for kernel in kernels:
            source.write_text(kernel.asm["ptx"])
            words = [PTXAS, "-v", f"--gpu-name={PTXAS_NAME}", source, "-o", result]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            yield {
                "kernel": kernel.name,
                "spilled": max(int(n) for pair in SPILLED.findall(done.stderr) for n in pair),
                "wgmma": len(re.findall(r"wgmma\.mma_async", kernel.asm["ptx"])),
                "fused": len(re.findall(r"\bfma\.rn\.f32", kernel.asm["ptx"])),
                "shared": kernel.metadata.shared,
            }


def main() -> None:
    """Compile all kernels, and print the reports."""
    kernels = compiled()
    for dtype in TYPES:
        before = len(kernels)
        call_all(dtype)
        for report in reports(kernels[before:]):
            print(json.dumps(report | {"dtype": str(dtype)}))
    before = len(kernels)
    for vocabulary in (4096, 151_936):
        drawing.draw(torch.zeros(4, 10, dtype=torch.int32), vocabulary)
    for report in reports(kernels[before:]):
        print(json.dumps(report | {"dtype": ""}))


if __name__ == "__main__":
    main()
