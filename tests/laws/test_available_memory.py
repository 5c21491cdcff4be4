"""How available memory is read from the system's files, and which part of it keys and values
get.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.allocator import PageAllocator
from tandem.engine.cache.footprint import Footprint, footprint
from tandem.engine.cache.pages import PAGE, PageTable, page_aligned
from tandem.engine.cache.pool import footprint_of, position_bytes
from tandem.engine.cache.stack import can_give_back
from tandem.engine.capacity import SCRATCH, context_of, positions_for, sessions_of
from tandem.engine.config import ModelServiceConfig
from tandem.engine.memory import (
    LIBRARIES,
    LOGITS,
    UNKNOWN_BYTES,
    VERSION_1,
    VERSION_2,
    Controller,
    available,
    cache_bytes,
    passes_bytes,
)
from tests.geometries import MODELS, SIZES, layers_of

MACHINE = "MemTotal:       2000 kB\nMemAvailable:    1000 kB\n"
SHARE = ModelServiceConfig.model_fields["kv_share"].default
CPU = torch.device("cpu")
TRIED = 768  # positions that a self-test needs
BYTES = st.integers(1, 1 << 40)


class Nothing(PageAllocator):
    """An allocator whose pages have no memory."""

    def copy(self, source: PageTable, target: PageTable, start: int, stop: int) -> None:
        """Do nothing: there is no memory."""

    def _give_back(self, page: int, everywhere: bool) -> None:
        """Do nothing: there is no memory."""

    def _copy_windowed(self, source: int, target: int) -> None:
        """Do nothing: there is no memory."""


def write_group(root: Path, controller: Controller, path: str, limit: str) -> None:
    """Write a control group that uses 100,000 bytes, of which 10,000 can be reclaimed."""
    folder = root / controller.folder / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / controller.limit).write_text(limit + "\n")
    (folder / controller.used).write_text("100000\n")
    active, inactive = controller.cached
    (folder / "memory.stat").write_text(f"anon 90000\nfile 10000\n{active} 4000\n{inactive} 6000\n")


def write_system(root: Path, machine: str | None, groups: str = "0::/\n") -> None:
    """Write the files that say how much memory the machine has left and which groups the process is
    in.
    """
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    if machine:
        (root / "proc/meminfo").write_text(machine)


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
    write_system(tmp_path, machine)
    if limit:
        write_group(tmp_path, VERSION_2, "", limit)
    assert available(tmp_path) == left


@pytest.mark.parametrize(
    ("controller", "groups"),
    [
        (VERSION_2, "0::/slice/service\n"),
        (VERSION_1, "3:cpu,cpuacct:/\n2:memory:/slice/service\n0::/\n"),
    ],
)
@pytest.mark.parametrize("limited", ["slice/service", "slice", ""])
def test_a_limit_of_any_group_that_the_process_is_part_of_counts(
    tmp_path: Path, controller: Controller, groups: str, limited: str
) -> None:
    """The test covers both versions of control groups. A container sees its own group at the top,
    although the group has its outside name.
    """
    write_system(tmp_path, MACHINE, groups)
    write_group(tmp_path, controller, "other", "200000")
    write_group(tmp_path, controller, limited, "600000")
    assert available(tmp_path) == 510_000


def test_keys_and_values_take_their_share_of_what_is_left() -> None:
    """On a device of 80 GB with a vocabulary of 128,000, keys and values leave enough memory for
    passes.
    """
    free, passes = 80_000_000_000, passes_bytes(128_000)
    assert passes == LIBRARIES + LOGITS * 4 * 128_000
    assert 2e9 < passes < 3e9
    assert cache_bytes(free - passes, 1) == free - passes
    assert cache_bytes(free, 0.4) == int(0.4 * free)
    assert cache_bytes(LIBRARIES // 2 - passes, 0.9) == 0, "the device is full"
    assert cache_bytes(None, 0.9) == UNKNOWN_BYTES, "the system does not say"


@given(BYTES, st.floats(0, 0.5), st.floats(0, 1))
def test_two_services_that_start_at_once_do_not_take_more_than_there_is(
    memory: int, loaded: float, part: float
) -> None:
    """The weights of a verifier and a drafter take up to half of the memory. Each service reads the
    free memory after it has loaded its own weights, at any time. A service cannot see the other
    service's KV cache, because that memory is not touched yet.
    """
    weights = loaded * part * memory, loaded * (1 - part) * memory
    for order in set(permutations([0, 0, 1, 1])):
        left, taken, seen = float(memory), 0, set[int]()
        for service in order:
            if service not in seen:
                seen.add(service)
                left -= weights[service]
            else:
                taken += cache_bytes(int(left), SHARE)
        assert taken <= left


def test_three_services_without_large_weights_share_a_machine() -> None:
    assert 3 * cache_bytes(1 << 34, SHARE) < 1 << 34


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_of_today_have_a_long_context_on_a_machine_of_24_gb(
    name: str, dtype: torch.dtype
) -> None:
    """All layers see the whole context, and 16 GB are left after the weights are loaded."""
    own, positions = SIZES[name]["max_position_embeddings"], cache_bytes(16 << 30, SHARE)
    positions //= position_bytes(layers_of(name), dtype)
    assert positions >= positions_for(16_384, TRIED)
    assert context_of(positions, own) >= min(own, 16_384)


@given(st.integers(2, 1 << 20), st.integers(2, 1 << 20), st.integers(0, 2048))
def test_a_context_is_the_longest_that_has_its_positions(
    asked: int, longest: int, tried: int
) -> None:
    positions = positions_for(asked, tried)
    assert context_of(positions, longest) >= min(asked, longest)
    assert context_of(positions - tried, longest) <= longest


@given(st.integers(2, 1 << 20), st.integers(0, 1 << 24))
def test_so_many_sessions_of_the_whole_context_fit_as_are_reported(longest: int, more: int) -> None:
    positions = positions_for(1, 0) + more
    context = context_of(positions, longest)
    count = sessions_of(positions, context, 1 << 24)
    each = page_aligned(context + SCRATCH)
    assert count >= 1 and count * each <= positions < (count + 1) * each
    assert sessions_of(positions, context, 1) == 1, "no more than may be open"


@given(
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(1, 2000),
    st.integers(16, 700),
    st.integers(0, 1 << 14),
    st.integers(1, 1 << 18),
)
def test_so_long_a_text_fits_where_layers_have_windows_and_no_longer_one(
    full: int, windowed: int, window: int, step: int, more: int, longest: int
) -> None:
    """The text is read in chunks; a chunk is fed before the memory that the windows have left is
    given up for the next.
    """
    shape = footprint(full, windowed, window, step)
    positions = positions_for(1, 0, shape) + more
    context, pool = context_of(positions, longest, shape), Nothing(positions, shape)
    assert context >= min(longest, context_of(positions, longest))
    table = PageTable()
    assert pool.grow(table, context + SCRATCH, narrow=True)
    for start in range(0, context + SCRATCH, step):
        pool.prepare(table, start, min(start + step, context + SCRATCH))
    assert pool.allocated <= pool.size
    assert context == longest or shape.price(len(table.pages) + 1) * PAGE > pool.size
    fitting = sessions_of(positions, context, 1 << 24, shape)
    assert fitting >= max(1, sessions_of(positions, context, 1 << 24))
    assert positions_for(context, 0, shape) <= positions + 2 * PAGE


@pytest.mark.skipif(not can_give_back(CPU), reason="memory cannot be given back here")
@pytest.mark.parametrize(
    ("size", "before", "after"),
    [(256 << 20, (9792, 0), (57664, 1)), (4 << 30, (32768, 4), (32768, 25))],
)
def test_windows_make_the_contexts_and_sessions_that_the_documents_name(
    size: int, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """The model is Gemma 3 1B, in which every sixth layer sees the whole text; texts have 32,768
    tokens.
    """
    window, number = SIZES["Gemma-3-1B"]["sliding_window"], count(1)
    layers = [
        replace(layer, window=window if next(number) % 6 else None)
        for layer in layers_of("Gemma-3-1B")
    ]
    shape = footprint_of(layers, torch.bfloat16, CPU, 512 + SCRATCH)
    positions = size // position_bytes(layers, torch.bfloat16)
    longest = max(before[0], after[0])
    for kept, (context, sessions) in ((Footprint(), before), (shape, after)):
        assert context_of(positions, longest, kept) == context
        assert sessions_of(positions, 32768, 1 << 24, kept) == sessions
