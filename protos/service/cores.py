"""How many processor cores this process can use, as reported by the system."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")
SIBLINGS = "topology/thread_siblings_list"  # hardware threads that share a core with one


def usable(root: Path = ROOT) -> int:
    """Physical cores that the process may run on, no more than the time its group is allowed; at
    least 1. Two hardware threads of a core multiply no faster than one.
    """
    cores = {_core(root, number) for number in _allowed()}
    return max(1, min(len(cores), _quota(root, len(cores))))


def _allowed() -> set[int]:
    """Hardware threads that the process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(root: Path, number: int) -> str:
    with suppress(OSError):
        return (root / f"sys/devices/system/cpu/cpu{number}" / SIBLINGS).read_text()
    return str(number)


def _quota(root: Path, most: int) -> int:
    """Whole cores' worth of time, of control groups version 2, as a container sees its own."""
    with suppress(OSError, ValueError):
        time, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return int(time) // int(period)  # "max" is no number: there is no limit
    return most
