"""How much memory this process can still get, as far as the system reports, and what keys and
values may have of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
LOGITS = 4096  # rows of float32: of every captured pass, and what sampling makes of them
LIBRARIES = 512 << 20  # bytes that passes take beside that
UNKNOWN_BYTES = 2 << 30  # of keys and values where a system does not say what it has left


@dataclass(frozen=True, slots=True)
class Controller:
    """Where a version of Linux' control groups keeps what a group may use and what it uses.
    `cached`: lines of its statistics with bytes that are given back when they are needed.
    """

    folder: str
    limit: str
    used: str
    cached: tuple[str, ...]


VERSION_2 = Controller(
    "sys/fs/cgroup", "memory.max", "memory.current", ("active_file", "inactive_file")
)
VERSION_1 = Controller(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)


def available(root: Path = ROOT) -> int | None:
    """Bytes that the machine has left, or the process's group of processes if that is less; None if
    the system reports neither.
    """
    return min([*_machine(root), *_groups(root)], default=None)


def passes_bytes(vocabulary: int) -> int:
    """Bytes that passes take on a device beside weights, keys and values."""
    return LIBRARIES + LOGITS * 4 * vocabulary


def cache_bytes(left: int | None, share: float) -> int:
    """Bytes of keys and values where so many are left when the weights are loaded: a share, since
    other processes look for memory at the same time.
    """
    return UNKNOWN_BYTES if left is None else max(0, int(share * left))


def _machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """What the process's own control group has left, and each that it is part of."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(root, VERSION_2, path)
            elif "memory" in controllers.split(","):
                yield from _left(root, VERSION_1, path)


def _left(root: Path, controller: Controller, path: str) -> Iterator[int]:
    """What a group has left, and those above it: a container sees its own at the top, whatever it
    is called outside.
    """
    own = PurePosixPath(path.lstrip("/"))
    for group in (own, *own.parents):
        folder = root / controller.folder / group
        with suppress(OSError, ValueError):
            limit = int((folder / controller.limit).read_text())
            left = limit - int((folder / controller.used).read_text())
            kinds = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield left + sum(int(size) for kind, size in kinds if kind in controller.cached)
