"""A stretch is a sequence of instructions that a single call of the CPU kernels runs. Intermediate
results of a stretch share memory if they are not needed at the same time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tandem.engine.forward.cpu.kernels import required_kernels
from tandem.engine.program.instructions import Instruction, Place, Written, groups_of
from tandem.engine.program.layout import View
from tandem.engine.program.program import Counted, Now

ALIGNMENT = 64  # in bytes: a cache line of the processor


@dataclass(frozen=True, slots=True)
class Shown:
    """An action that makes a tensor from memory that a stretch has written. `number` is the index
    of the tensor among the values of the pass, and `memory` is the index of the memory.
    """

    number: int
    memory: int
    dtype: torch.dtype
    sizes: Sequence[Counted]
    strides: Sequence[Counted]
    offset: Counted

    @property
    def reads(self) -> Sequence[int]:
        """The index of the value that holds the memory."""
        return [self.memory]

    def run(self, now: Now) -> None:
        """Make the tensor as a view of the memory, with the sizes and strides for this pass."""
        sizes, strides = ([each.at(now) for each in some] for some in (self.sizes, self.strides))
        memory: torch.Tensor = now.values[self.memory].view(self.dtype)
        now.values[self.number] = memory.as_strided(sizes, strides, self.offset.at(now))


class Stretch:
    """An action that runs consecutive instructions.

    `known` contains the storages that exist before the stretch, and maps them to the indices of
    their values or to tensors that never change. `own` contains the storages that are also used
    outside the stretch, and maps them to the indices of the values that hold their memory. Storages
    in neither `known` nor `own` share one block of memory. `sizes` contains the bytes per row of
    each storage.
    """

    def __init__(
        self,
        written: Sequence[Written],
        known: Mapping[Hashable, int | torch.Tensor],
        own: Mapping[Hashable, int],
        sizes: Mapping[Hashable, int],
    ) -> None:
        made = {each.result.storage for each in written} & own.keys()
        self._own = {own[key]: sizes[key] for key in made}
        hidden = {key: size for key, size in sizes.items() if key not in own}
        offsets, size = allocate(written, hidden)
        self._offsets = offsets
        self._size = size  # bytes per row of the shared memory
        self._sources: dict[Hashable, int] = {None: 0}  # source 0 is the shared memory
        self._program = (Instruction * len(written))(*(self._instruction(each) for each in written))
        given = {**known, **own}
        self._given = [(source, given[key]) for key, source in self._sources.items() if source]

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values that the stretch reads or writes."""
        return [given for _, given in self._given if isinstance(given, int)]

    def run(self, now: Now) -> None:
        """Run all instructions of the stretch in one call of the kernels."""
        shared = torch.empty(self._size * now.rows, dtype=torch.uint8)
        for number, size in self._own.items():
            now.values[number] = torch.empty(size * now.rows, dtype=torch.uint8)
        addresses = (ctypes.c_void_p * len(self._sources))(shared.data_ptr())
        for source, given in self._given:
            tensor = now.values[given] if isinstance(given, int) else given
            addresses[source] = tensor.untyped_storage().data_ptr()
        required_kernels().run(self._program, now.rows, addresses, now.step)

    def _instruction(self, written: Written) -> Instruction:
        nothing = View(-1)
        reads = [self._found(place) for place in written.reads]
        stored = written.result.storage is None
        result = written.result.view if stored else self._found(written.result)
        views = (result, *reads, *[nothing] * (3 - len(reads)))
        kinds = written.operation, written.kind, written.source_kind, written.number
        return Instruction(*kinds, written.outer, written.inner, *views, written.layer)

    def _found(self, place: Place) -> View:
        """Return the view of a place, and store the index of the place's memory in it."""
        view = View.from_buffer_copy(place.view)
        if place.storage in self._offsets:
            view.source = 0
            view.offset.each += self._offsets[place.storage]
        else:
            view.source = self._sources.setdefault(place.storage, len(self._sources))
        return view


def allocate(
    written: Sequence[Written], sizes: Mapping[Hashable, int]
) -> tuple[dict[Hashable, int], int]:
    """Divide a block of memory among storages. Return the offset of each storage and the total size
    of all storages, both in bytes per row. Storages that are needed at the same time do not
    overlap. The instructions of a group run row by row, so every storage that a group uses is
    needed until the group ends.
    """
    first, last = dict[Hashable, int](), dict[Hashable, int]()
    for group, each in zip(groups_of(written), written, strict=True):
        for place in (each.result, *each.reads):
            if place.storage in sizes:
                first.setdefault(place.storage, group)
                last[place.storage] = group
    offsets, total, living = dict[Hashable, int](), 0, list[Hashable]()
    for storage in first:  # storages, in the order in which they are first needed
        size, offset = _aligned(sizes[storage]), 0
        living = [other for other in living if last[other] >= first[storage]]
        for other in living:  # storages, in the order of their offsets
            if offset + size <= offsets[other]:
                break
            offset = max(offset, offsets[other] + _aligned(sizes[other]))
        offsets[storage] = offset
        living = sorted([*living, storage], key=offsets.__getitem__)
        total = max(total, offset + size)
    return offsets, total


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
