"""Counts the processor cores that this process can use, and binds the process to one NUMA node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tandem.protos.errors import Unusable

ROOT = Path("/")
CPUS, NODES = "sys/devices/system/cpu", "sys/devices/system/node"


def usable(root: Path = ROOT, numa: int | None = None) -> int:
    """Return how many physical cores of a NUMA node the process may use. By default, the node with
    the most usable cores is counted. A container's CPU limit lowers the result, but not below 1.
    A core counts once even if it has two hardware threads, because two threads of a core multiply
    no faster than one. Other nodes do not count, because access to their memory is slow.
    """
    allowed = _allowed()
    shares = (own & allowed for node, own in nodes(root).items() if numa in (None, node))
    counts = [_cores(root, share) for share in shares if share] or [_cores(root, allowed)]
    return max(1, min(max(counts), _quota(root, max(counts))))


def bind(numa: int, root: Path = ROOT) -> None:
    """Run this thread, and all threads that it starts from now on, only on the processors of a NUMA
    node. Memory is then allocated on that node, because the system places memory where it is first
    written. Raises Unusable.
    """
    allowed, found = _allowed(), nodes(root)
    if not (own := found.get(numa, set()) & allowed):
        usual = ", ".join(str(node) for node in sorted(found) if found[node] & allowed)
        limit = f"the nodes that this process may run on are {usual or 'not known'}"
        raise Unusable(f"numa {numa} cannot be used: {limit}")
    os.sched_setaffinity(0, own)


def nodes(root: Path = ROOT) -> dict[int, set[int]]:
    """Map each NUMA node to its hardware threads. The map is empty if no nodes are reported."""
    found = dict[int, set[int]]()
    for folder in (root / NODES).glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            found[int(folder.name.removeprefix("node"))] = _listed(folder / "cpulist")
    return found


def _listed(file: Path) -> set[int]:
    """Return the numbers in a file with a list like `0-3,8`; raises OSError and ValueError."""
    ends = [part.partition("-") for part in file.read_text().strip().split(",") if part]
    return {each for low, _, high in ends for each in range(int(low), int(high or low) + 1)}


def _allowed() -> set[int]:
    """Return the hardware threads that the process may run on."""
    if hasattr(os, "sched_getaffinity"):  # macOS lacks this function
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores(root: Path, numbers: Iterable[int]) -> int:
    return len({_core(root, number) for number in numbers})


def _core(root: Path, number: int) -> tuple[str, ...]:
    """Return an identifier of the physical core of a hardware thread: the list of the threads of
    this core or, if that is unknown, the ids of package and core.
    """
    topology = root / CPUS / f"cpu{number}" / "topology"
    for names in (("thread_siblings_list",), ("physical_package_id", "core_id")):
        with suppress(OSError):
            return tuple((topology / name).read_text() for name in names)
    return (str(number),)


def _quota(root: Path, most: int) -> int:
    """Return the CPU limit of the container's control group (cgroup v2) in whole cores, or `most`
    if there is no limit.
    """
    with suppress(OSError, ValueError):
        time, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return int(time) // int(period)  # "max" is not a number and means no limit
    return most
