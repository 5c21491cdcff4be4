"""Planning of the memory that the storages of a stretch share, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tandem.engine.program.instructions import Written, groups_of

ALIGNED = 64  # bytes, a line of the processor's cache


def allocated(
    written: Sequence[Written], sizes: Mapping[Hashable, int]
) -> tuple[dict[Hashable, int], int]:
    """Return the offset of each storage and the size of all together, both in bytes per row.
    Storages that are needed at the same time do not overlap. The instructions of a group take turns
    at each row, so every storage that a group uses is needed until the group ends.
    """
    first, last = dict[Hashable, int](), dict[Hashable, int]()
    for group, each in zip(groups_of(written), written, strict=True):
        for place in (each.result, *each.reads):
            if place.storage in sizes:
                first.setdefault(place.storage, group)
                last[place.storage] = group
    offsets, total, living = dict[Hashable, int](), 0, list[Hashable]()
    for storage in first:  # in the order in which storages are needed
        size, offset = _aligned(sizes[storage]), 0
        living = [other for other in living if last[other] >= first[storage]]
        for other in living:  # in the order of offsets
            if offset + size <= offsets[other]:
                break
            offset = max(offset, offsets[other] + _aligned(sizes[other]))
        offsets[storage] = offset
        living = sorted([*living, storage], key=offsets.__getitem__)
        total = max(total, offset + size)
    return offsets, total


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
