"""This file builds the CPU kernels once for each instruction set, because pyproject.toml cannot
express that. Without a compiler the package is built without these kernels. The kernels are not
linked to OpenMP: PyTorch has already loaded its own copy of OpenMP when the kernels are loaded, and
the threads of two copies would wait for each other.
"""

import os
import platform
import sys
from pathlib import Path
from zlib import crc32

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/tandem/engine/forward/cpu")
SOURCES = sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])
X86 = {
    "avx512bf16": ["-march=x86-64-v4", "-mavx512bf16"],
    "avx512": ["-march=x86-64-v4"],
    "avx2": ["-march=x86-64-v3"],
}
ARM = {"sve256": ["-march=armv8.2-a+sve", "-msve-vector-bits=256"], "neon": []}
MACHINE = os.environ.get("_PYTHON_HOST_PLATFORM", platform.machine()).rpartition("-")[2]
BUILDS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}.get(MACHINE, {})
OPENMP = [] if sys.platform == "darwin" else ["-fopenmp"]  # Apple's compiler lacks OpenMP


class Apart(build_ext):
    """Builds each extension in a temporary folder of its own, because all extensions have the same
    sources.
    """

    def finalize_options(self) -> None:
        """Switch off parallel builds. Setuptools calls this method."""
        super().finalize_options()
        self.parallel = None

    def build_extension(self, ext: Extension) -> None:
        """Build one extension in its own folder. Setuptools calls this method."""
        folder = self.build_temp
        self.build_temp = f"{folder}/{ext.name}"
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = folder


setup(
    cmdclass={"build_ext": Apart},
    ext_modules=[
        Extension(
            f"tandem.engine.forward.cpu._{name}",
            [str(file) for file in SOURCES if file.suffix == ".cpp"],
            depends=[str(file) for file in SOURCES],
            define_macros=[("SOURCES", f"{crc32(b''.join(map(Path.read_bytes, SOURCES)))}u")],
            extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=fast", *OPENMP, *flags],
            language="c++",
            optional=True,
        )
        for name, flags in BUILDS.items()
    ],
)
