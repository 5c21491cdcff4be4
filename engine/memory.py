"""Determine how much memory is available to this process, and how much of it keys and values may
take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
LOGITS = 4096  # reserved rows of float32 logits: for captured passes, and for copies in sampling
LIBRARIES = 512 << 20  # bytes that forward passes take in addition to these logits
UNKNOWN_BYTES = 2 << 30  # bytes for keys and values if the system does not report free memory


@dataclass(frozen=True, slots=True)
class Controller:
    """The files that report the memory limit and memory use of a Linux control group, for version 1
    or 2 of control groups. `cached` names the entries of memory.stat that count memory which the
    system can reclaim.
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
    """Return the bytes of memory that are available to this process, or None if the system does not
    report them. The result is the minimum of what the machine and each of the process's control
    groups have left.
    """
    return min([*_machine(root), *_groups(root)], default=None)


def passes_bytes(vocabulary: int) -> int:
    """Return the bytes that forward passes take on a device in addition to weights, keys and
    values.
    """
    return LIBRARIES + LOGITS * 4 * vocabulary


def cache_bytes(left: int | None, share: float) -> int:
    """Return how many bytes keys and values may take. After the weights are loaded, `left` bytes
    are free; None means unknown. Keys and values get only a share of the free memory, because other
    processes need memory, too.
    """
    return UNKNOWN_BYTES if left is None else max(0, int(share * left))


def _machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _groups(root: Path) -> Iterator[int]:
    """Yield the available bytes of the process's control group and of each parent group."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _left(root, VERSION_2, path)
            elif "memory" in controllers.split(","):
                yield from _left(root, VERSION_1, path)


def _left(root: Path, controller: Controller, path: str) -> Iterator[int]:
    """Yield the available bytes of a control group and of each parent group. Inside a container,
    the container's own group appears as the root group.
    """
    own = PurePosixPath(path.lstrip("/"))
    for group in (own, *own.parents):
        folder = root / controller.folder / group
        with suppress(OSError, ValueError):
            limit = int((folder / controller.limit).read_text())
            left = limit - int((folder / controller.used).read_text())
            kinds = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield left + sum(int(size) for kind, size in kinds if kind in controller.cached)
