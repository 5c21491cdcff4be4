"""The processes of the private Ray cluster that an orchestrator has started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CELL, CONTROL_PLANE, NODE = b"ray::ServeReplica", b"gcs_server", b"raylet/raylet"


def ray_processes(orchestrator: int, name: bytes) -> list[int]:
    """Return the processes of the orchestrator's session whose command line begins with a name, or
    whose program's path ends with it.
    """
    return [
        process
        for process, session, program in running()
        if session == orchestrator and (program.startswith(name) or program.endswith(name))
    ]


def running() -> Iterator[tuple[int, int, bytes]]:
    """Yield every process of the machine that has not ended: its number, its session's number, its
    program.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program = (folder / "cmdline").read_bytes().partition(b"\0")[0]
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                yield int(folder.name), int(fields[3]), program
