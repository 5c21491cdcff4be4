"""How much memory this process can still get, as far as the system reports, and what keys and
values may have of a device's.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
LIMIT, USED, KINDS = "memory.max", "memory.current", "memory.stat"  # of the group of processes
LOGITS = 4096  # rows of float32: of every captured pass, and what sampling makes of them
LIBRARIES = 512 << 20  # bytes that passes take beside that
CACHED = ("active_file ", "inactive_file ")  # used, and given back when it is needed


def available(root: Path = ROOT) -> int | None:
    """Bytes that the machine has left, or the group if it is limited; None if the system reports
    neither.
    """
    left = [found for found in (_machine(root), _group(root)) if found is not None]
    return min(left, default=None)


def cache_bytes(free: int, share: float, vocabulary: int) -> int:
    """Bytes of keys and values on a device that has `free` bytes when the weights lie there: a
    share of what passes leave. Another process may want the rest.
    """
    return max(0, int(share * (free - LIBRARIES - LOGITS * 4 * vocabulary)))


def _machine(root: Path) -> int | None:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group(root: Path) -> int | None:
    """Of control groups version 2, as a container sees its own."""
    folder = root / "sys/fs/cgroup"
    with suppress(OSError, ValueError):
        left = int((folder / LIMIT).read_text()) - int((folder / USED).read_text())
        kinds = (folder / KINDS).read_text().splitlines()
        return left + sum(int(kind.split()[1]) for kind in kinds if kind.startswith(CACHED))
    return None
