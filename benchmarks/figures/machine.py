"""Describe the machine of a measurement: its processors and the installed packages.

This module needs only PyTorch and transformers, like all modules that the CUDA benchmark imports.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.cuda.batch_invariance import WORKSPACES

CPU_FACTS = Path("/proc/cpuinfo")
PACKAGES = ("torch", "transformers")


def described(threads: str) -> str:
    """Describe the CPU, its cores, the compiled kernels, `threads` and the installed packages."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{processor()}, {os.cpu_count()} cores, {build()}, {threads}, {packages}"


def build() -> str:
    """Name the compiled kernels that this processor runs, or say that there are none."""
    found = kernels()
    return f"{found.name} kernels" if found else "no compiled kernels"


def processor() -> str:
    """Return the CPU model as the operating system names it."""
    if CPU_FACTS.is_file():
        for line in CPU_FACTS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def facts(device: torch.device) -> dict[str, Any]:
    """Return all properties of the machine that can affect results, for the JSON file."""
    found: dict[str, Any] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": build(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "cuda": torch.version.cuda,
        "device": str(device),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "device_name": about.name,
            "device_bytes": about.total_memory,
            "multiprocessors": about.multi_processor_count,
            "capability": f"{about.major}.{about.minor}",
            **{name.lower(): os.environ.get(name) for name in WORKSPACES},
        }
    return found
