"""Find how much memory this process can still get, as far as the system reports it, and how much of
that memory keys and values may take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
LOGITS = 4096  # rows of float32 logits: those of all captured passes, and copies for sampling
LIBRARIES = 512 << 20  # bytes that passes take besides these logits
UNKNOWN_BYTES = 2 << 30  # bytes for keys and values where a system does not report its free memory


@dataclass(frozen=True, slots=True)
class Controller:
    """The files in which a version of Linux' control groups keeps a group's memory limit and use.
    `cached` names the lines of memory.stat whose bytes the system takes back when it needs them.
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
    """Return the bytes of memory that this process can still get. This is the smallest amount that
    the machine or one of the process's control groups has left. Return None if the system reports
    none of these amounts.
    """
    return min([*_machine(root), *_groups(root)], default=None)


def passes_bytes(vocabulary: int) -> int:
    """Return the bytes that forward passes take on a device besides weights, keys and values."""
    return LIBRARIES + LOGITS * 4 * vocabulary


def cache_bytes(left: int | None, share: float) -> int:
    """Return the bytes for keys and values if `left` bytes are free after the weights are loaded
    (None: unknown). Keys and values get only a share, because other processes need memory too.
    """
    return UNKNOWN_BYTES if left is None else max(0, int(share * left))


def _machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """Yield the bytes that the process's control group, and each group above it, has left."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(root, VERSION_2, path)
            elif "memory" in controllers.split(","):
                yield from _left(root, VERSION_1, path)


def _left(root: Path, controller: Controller, path: str) -> Iterator[int]:
    """Yield the bytes that a control group and each group above it have left. A container sees its
    own group at the top, whatever the group is called outside.
    """
    own = PurePosixPath(path.lstrip("/"))
    for group in (own, *own.parents):
        folder = root / controller.folder / group
        with suppress(OSError, ValueError):
            limit = int((folder / controller.limit).read_text())
            left = limit - int((folder / controller.used).read_text())
            kinds = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield left + sum(int(size) for kind, size in kinds if kind in controller.cached)
