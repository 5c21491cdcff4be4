"""What every benchmark prints and writes: on what it was measured, tables, and the same as JSON.

Looks at this machine and the installed packages; knows nothing of what the figures mean.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

CPU_FACTS = Path("/proc/cpuinfo")
PACKAGES = ("torch", "transformers")
NARROWEST = 110  # columns; a log file is as wide as its longest line


def title(target: Path, draft: Path, what: str) -> str:
    """The pair, what was asked of it, and where."""
    return f"{target.name} + {draft.name}, {what}: {machine('one thread per model')}, float32"


def machine(threads: str) -> str:
    """CPU model, cores, threads as the caller names them, package versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"{processor()}, {os.cpu_count()} cores, {threads}, {packages}"


def processor() -> str:
    """The CPU model as the kernel names it."""
    if CPU_FACTS.is_file():
        for line in CPU_FACTS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def publish(
    heading: str, tables: RenderableType, rows: Sequence[Mapping[str, Any]], file: Path | None
) -> None:
    """Print a table, or a group of them, and, if a file is given, write its rows there."""
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    console.print(heading, soft_wrap=True)
    console.print(tables)
    if file:
        file.write_text(
            json.dumps({"title": heading, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )
