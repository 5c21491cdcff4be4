"""What every benchmark prints and writes: on what it was measured, tables, and the same as JSON.

Knows nothing of what the figures mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from tandem.benchmarks.figures.machine import described

NARROWEST = 110  # columns; a log file is as wide as its longest line


def title(target: Path, draft: Path, what: str, dtype: str = "float32") -> str:
    """The pair, what was asked of it, and where."""
    return f"{target.name} + {draft.name}, {what}: {described('one thread per model')}, {dtype}"


def publish(
    heading: str, tables: RenderableType, rows: Sequence[Mapping[str, Any]], file: Path | None
) -> None:
    """Print a table, or a group of them, and, if a file is given, write its rows there."""
    console = Console(highlight=False)
    console.width = max(console.width, NARROWEST)
    console.print(heading, soft_wrap=True)
    console.print(tables)
    if file:
        write(heading, rows, file)


def write(heading: str, rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """The rows, for programs."""
    written = json.dumps({"title": heading, "rows": rows}, indent=2, default=_enum)
    file.write_text(written + "\n", encoding="utf-8")


def _enum(value: Enum) -> str:
    return value.name.lower()
