"""Print the results of a benchmark as tables, and write them to a JSON file.

This module does not interpret the results. `make results` generates tables in RESULTS.md and
README.md from the JSON files in benchmarks/results.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console, RenderableType

from tandem.benchmarks.figures.machine import described, processor

# the option `--json` of every benchmark
JsonFile: TypeAlias = Annotated[
    Path | None, typer.Option("--json", help="also write the results to this JSON file")
]
MIN_COLUMNS = 110  # minimum width of tables, also where the output is a log file


def title(target: Path, draft: Path, what: str, dtype: str = "float32") -> str:
    """Return a title that names the measured models, the workload `what`, the machine and the
    dtype.
    """
    return f"{target.name} + {draft.name}, {what}: {described('one thread per model')}, {dtype}"


def publish(
    heading: str, tables: RenderableType, rows: Sequence[Mapping[str, Any]], file: Path | None
) -> None:
    """Print one or several tables and, if a file is given, write the rows to the file."""
    console = Console(highlight=False)
    console.width = max(console.width, MIN_COLUMNS)
    console.print(heading, soft_wrap=True)
    console.print(tables)
    if file:
        write(heading, rows, file)


def write(heading: str, rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write rows as JSON, with the command, machine, date and commit that they come from."""
    origin = {
        "command": _command(sys.orig_argv),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": _commit(),
    }
    written = json.dumps({"title": heading, **origin, "rows": rows}, indent=2, default=_enum)
    file.write_text(written + "\n", encoding="utf-8")


def _command(words: Sequence[str]) -> str:
    """Return the command that this process runs, without the option `--json`."""
    kept = [word for word in words[1:] if word != "-P" and not word.startswith("--json=")]
    if "--json" in kept:
        place = kept.index("--json")
        del kept[place : place + 2]
    return shlex.join(["python", *kept])


def _commit() -> str:
    """Return the commit of the checkout, with `-dirty` if there are uncommitted changes."""
    command = ["git", "describe", "--always", "--abbrev=7", "--dirty", "--exclude", "*"]
    with suppress(OSError, subprocess.CalledProcessError):
        here = Path(__file__).resolve().parent
        return subprocess.check_output(
            command, cwd=here, text=True, stderr=subprocess.DEVNULL
        ).strip()
    return "unknown"


def _enum(value: Enum) -> str:
    return value.name.lower()
