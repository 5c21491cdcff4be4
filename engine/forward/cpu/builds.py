"""Find the builds of the compiled kernels that this processor can run. A checksum in each build
tells whether the build was made from the current sources.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import torch

FOLDER = Path(__file__).parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def sources_of(folder: Path) -> int:
    """Return the checksum of the kernel sources in a folder. setup.py stores it in each build."""
    files = sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])
    return crc32(b"".join(map(Path.read_bytes, files)))


SOURCES = sources_of(FOLDER)


def runnable() -> Iterator[Path]:
    """Yield the files of all builds that this processor can run, the best instruction set first."""
    names = {"AVX512": ["avx512", "avx2"], "AVX2": ["avx2"], "SVE256": ["sve256", "neon"]}.get(
        torch.backends.cpu.get_cpu_capability(), ["neon"]
    )
    if "avx512" in names and torch.cpu._is_avx512_bf16_supported():
        names.insert(0, "avx512bf16")
    for name in names:
        if (file := FOLDER / f"_{name}{SUFFIX}").exists():
            yield file
