"""An emulated ARM machine (QEMU): Debian's Python, PyTorch, the packages that the engine needs, and
this project's kernels from a cross-compiler.

    .venv/bin/python -m tests.arm makes the machine, in .venv/arm; `make arm` installs its packages
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv" / "arm"
SYSTEM, SITE, READY = FOLDER / "system", FOLDER / "site", FOLDER / "ready"
TORCH = "2.8.0"  # later wheels for ARM are for CUDA, and four times as large
ROOTS = (
    "transformers",
    "gguf",
    "structlog",
    "pydantic-settings",
    "grpcio-status",
    "prometheus-client",
)
ROOTS += ("grpcio-health-checking", "grpcio-reflection", "opentelemetry-exporter-otlp-proto-grpc")
ROOTS += ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "sympy", "networkx", "jinja2")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
# processors by the build that runs on each
PROCESSORS = {"neon": "cortex-a72", "sve256": "max,sve-max-vq=2"}
TRIPLE = "aarch64-linux-gnu"
RELEASE, PYTHON = "bookworm", "3.11"  # Debian's release, and its version of Python


def packages(roots: tuple[str, ...]) -> list[str]:
    """Return these packages and their dependencies except PyTorch, in the versions that are
    installed here.
    """
    found: dict[str, str] = {}

    def add(name: str, extras: set[str]) -> None:
        if name in found or name == "torch":
            return
        found[name] = version(name)
        for line in requires(name) or ():
            needed = Requirement(line)
            environments = [
                {"extra": each, "platform_machine": "aarch64"} for each in ("", *extras)
            ]
            if not needed.marker or any(map(needed.marker.evaluate, environments)):
                add(needed.name.lower().replace("_", "-"), needed.extras)

    for root in roots:
        add(root, set())
    return [f"{name}=={number}" for name, number in found.items()]


def make() -> None:
    """Fetch Debian's archive, then the wheels, and build the kernels."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    names = "--include=python3,libgomp1,libstdc++6"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--arch=arm64", "--variant=extract", names, RELEASE, SYSTEM],
        check=True,
    )
    choice = [f"--python-version={PYTHON}", *(f"--platform={each}" for each in PLATFORMS)]
    install = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"), "--target", SITE]
    wheels = [*packages(ROOTS), f"torch=={TORCH}"]
    subprocess.run([*install, "--only-binary=:all:", *choice, *wheels], check=True)
    build()
    READY.touch()


def build() -> None:
    """Build the kernels for the ARM machine, in the folder of those for this machine."""
    compiler = f"{TRIPLE}-g++"
    environment = {
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{PYTHON.replace('.', '')}-{TRIPLE}.so",
        "CC": compiler,
        "CXX": compiler,
        "LDSHARED": f"{compiler} -shared",
        "LDCXXSHARED": f"{compiler} -shared",
    }
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    temporary = ["--build-temp", str(FOLDER / "build")]
    subprocess.run([*command, *temporary], cwd=ROOT, env=os.environ | environment, check=True)


def run(processor: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return the command that runs Python on a processor with what a build needs."""
    emulator = ["qemu-aarch64", "-L", str(SYSTEM), "-cpu", PROCESSORS[processor]]
    variables |= {"PYTHONPATH": f"{SITE}:{ROOT / 'src'}:{ROOT}"}
    environment = [word for each in variables.items() for word in ("-E", "=".join(each))]
    return subprocess.run(
        [*emulator, *environment, str(SYSTEM / "usr/bin/python3"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


if __name__ == "__main__":
    make()
