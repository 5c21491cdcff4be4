"""What every benchmark prints and writes: on what it was measured, a table, and the same as JSON.

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

from rich.console import Console
from rich.table import Table

CPU_FACTS = Path("/proc/cpuinfo")
PACKAGES = ("torch", "transformers")
NARROWEST = 110  # columns; a log file is as wide as its longest line


def title(target: Path, draft: Path, what: str) -> str:
    """The pair, what was asked of it, and where: CPU model, cores, package versions, dtype."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = f"{processor()}, {os.cpu_count()} cores, one thread per model, {packages}, float32"
    return f"{target.name} + {draft.name}, {what}: {machine}"


def processor() -> str:
    """The CPU model as the kernel names it."""
    if CPU_FACTS.is_file():
        for line in CPU_FACTS.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def publish(
    heading: str, table: Table, rows: Sequence[Mapping[str, Any]], file: Path | None
) -> None:
    """Print the table and, if a file is given, write its rows there."""
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    console.print(heading, soft_wrap=True)
    console.print(table)
    if file:
        file.write_text(
            json.dumps({"title": heading, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )
