"""The processes of the private Ray that an orchestrator has started."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

WORKER, CONTROL_PLANE, NODE = b"ray::RoundWorker", b"gcs_server", b"raylet/raylet"


def ray_processes(orchestrator: int, name: bytes) -> list[int]:
    """Those whose command line begins with a name, or whose program ends with it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            program = (folder / "cmdline").read_bytes().partition(b"\0")[0]
            session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            ours = session == os.getsid(orchestrator)
            if ours and (program.startswith(name) or program.endswith(name)):
                found.append(int(folder.name))
    return found
