"""How many cores a process takes, from what the system says in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.protos.service import cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two hardware threads each, of which three cores may be used."""
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
