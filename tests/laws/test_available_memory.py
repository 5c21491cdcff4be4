"""How much memory there is, from the files in which a system says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.memory import available

MACHINE = "MemTotal:       2000 kB\nMemAvailable:    1000 kB\n"


@pytest.mark.parametrize(
    ("machine", "limit", "left"),
    [
        (MACHINE, "600000", 510_000),
        (MACHINE, "max", 1_024_000),
        (MACHINE, None, 1_024_000),
        (None, "600000", 510_000),
        (None, None, None),
        ("nothing", "max", None),
    ],
)
def test_the_lesser_of_what_machine_and_group_have_left(
    tmp_path: Path, machine: str | None, limit: str | None, left: int | None
) -> None:
    (tmp_path / "proc").mkdir()
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    if machine:
        (tmp_path / "proc/meminfo").write_text(machine)
    if limit:
        (group / "memory.max").write_text(limit + "\n")
        (group / "memory.current").write_text("100000\n")
        (group / "memory.stat").write_text(
            "anon 90000\nfile 10000\nactive_file 4000\ninactive_file 6000\n"
        )
    assert available(tmp_path) == left
