"""Memory that the storages of a stretch share, one after the other: pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from tandem.engine.program.instructions import Written, groups_of

ALIGNED = 64  # bytes, a line of the processor's cache


def allocated(
    written: Sequence[Written], sizes: Mapping[Hashable, int]
) -> tuple[dict[Hashable, int], int]:
    """Where each storage begins, in bytes for each row, and how many they take together: those that
    are needed at the same time do not overlap. Instructions that are done row by row are carried
    out in turns, so all that they read or write is needed until the last of them.
    """
    first, last = dict[Hashable, int](), dict[Hashable, int]()
    for group, each in zip(groups_of(written), written, strict=True):
        for place in (each.result, *each.reads):
            if place.storage in sizes:
                first.setdefault(place.storage, group)
                last[place.storage] = group
    offsets, total, living = dict[Hashable, int](), 0, list[Hashable]()
    for storage in first:  # in the order in which they are needed
        size, offset = _aligned(sizes[storage]), 0
        living = [other for other in living if last[other] >= first[storage]]
        for other in living:  # in the order of their offsets
            if offset + size <= offsets[other]:
                break
            offset = max(offset, offsets[other] + _aligned(sizes[other]))
        offsets[storage] = offset
        living = sorted([*living, storage], key=offsets.__getitem__)
        total = max(total, offset + size)
    return offsets, total


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
