"""How many cores a process takes, by the system's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.protos.errors import Unusable
from tandem.protos.service import cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a machine with four cores of two hardware threads each, of which the process may use
    three cores.
    """
    for number in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6}, raising=False)
    return tmp_path


def test_hardware_threads_of_a_core_count_once(machine: Path) -> None:
    assert cores.usable(machine) == 3


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 3), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 3)],
)
def test_a_limited_group_takes_no_more_than_its_share(
    limit: str, expected: int, machine: Path
) -> None:
    (machine / "sys/fs/cgroup").mkdir(parents=True)
    (machine / "sys/fs/cgroup/cpu.max").write_text(f"{limit}\n")
    assert cores.usable(machine) == expected


def test_a_system_that_says_nothing_has_the_cores_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert cores.usable(tmp_path) == 5


@pytest.fixture
def two_sockets(machine: Path) -> Path:
    """Write the same machine as two nodes of two cores each; the process may use two cores of one
    and one of the other.
    """
    for node, cpus in enumerate(("0-1,4-5\n", "2-3,6-7\n")):
        folder = machine / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus)
    return machine


def test_threads_are_the_cores_of_the_node_where_there_are_most(two_sockets: Path) -> None:
    assert cores.nodes(two_sockets) == {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}
    assert cores.usable(two_sockets) == 2
    assert [cores.usable(two_sockets, numa=node) for node in (0, 1)] == [2, 1]


def test_a_limited_group_takes_no_more_than_its_share_of_a_node(two_sockets: Path) -> None:
    (two_sockets / "sys/fs/cgroup").mkdir(parents=True)
    (two_sockets / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    assert cores.usable(two_sockets) == 1


def test_a_node_of_memory_alone_and_one_that_cannot_be_read_count_for_nothing(
    two_sockets: Path,
) -> None:
    folder = two_sockets / "sys/devices/system/node"
    for name, cpus in (("node2", "\n"), ("node3", "some\n")):
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(cpus)
    (folder / "node4").mkdir()
    assert cores.nodes(two_sockets).keys() == {0, 1, 2}
    assert cores.usable(two_sockets) == 2


def test_nodes_without_a_processor_of_the_process_leave_the_count_as_it_was(machine: Path) -> None:
    folder = machine / "sys/devices/system/node/node0"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text("8-15\n")
    assert cores.usable(machine) == 3


def test_cores_without_lists_are_told_apart_by_package_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both packages have cores 0 and 1, with two hardware threads each."""
    for number in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number // 4}\n")
        (folder / "core_id").write_text(f"{number % 2}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cores.usable(tmp_path) == 4


def test_a_bound_process_has_the_processors_of_the_node_that_it_may_use(
    two_sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: chosen.append(cpus), raising=False)
    cores.bind(1, two_sockets)
    assert chosen == [{2, 6}]


def test_a_node_that_cannot_be_used_is_refused_with_those_that_can(
    two_sockets: Path, tmp_path: Path
) -> None:
    with pytest.raises(Unusable, match=r"^numa 2 cannot be used: .* are 0, 1$"):
        cores.bind(2, two_sockets)
    with pytest.raises(Unusable, match=r"^numa 0 cannot be used: .* are not known$"):
        cores.bind(0, tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no processes")
def test_threads_that_start_later_stay_on_the_node(tmp_path: Path) -> None:
    """The test runs in a process of its own, on a node with one processor."""
    folder = tmp_path / "sys/devices/system/node/node7"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(f"{(one := min(os.sched_getaffinity(0)))}\n")
    program = f"""
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tandem.protos.service import cores

cores.bind(7, Path({str(tmp_path)!r}))
with ThreadPoolExecutor(1) as thread:
    print(os.sched_getaffinity(0), thread.submit(os.sched_getaffinity, 0).result())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"{ {one} } { {one} }\n", done.stderr
