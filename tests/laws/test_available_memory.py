"""How much memory there is, from the files in which a system says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.engine.config import ModelServiceConfig
from tandem.engine.memory import LIBRARIES, LOGITS, available, cache_bytes

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


def test_keys_and_values_take_their_share_of_what_passes_leave() -> None:
    """Of a device of 80 GB with a vocabulary of 128,000; with all of it, passes still fit."""
    free, vocabulary = 80_000_000_000, 128_000
    passes = LIBRARIES + LOGITS * 4 * vocabulary
    assert cache_bytes(free, 1, vocabulary) == free - passes
    assert cache_bytes(free, 0.4, vocabulary) == int(0.4 * (free - passes))
    assert 2e9 < passes < 3e9
    assert cache_bytes(LIBRARIES // 2, 0.9, 1000) == 0, "the device is full"


def test_two_processes_that_look_at_once_do_not_take_more_than_there_is() -> None:
    """A verifier and a drafter on one device, each with the default share."""
    share = ModelServiceConfig.model_fields["kv_share"].default
    assert 2 * cache_bytes(80_000_000_000, share, 128_000) < 80_000_000_000
