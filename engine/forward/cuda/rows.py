"""The data of a pass as arrays. The sizes of the arrays depend almost only on the form of the pass.

The arrays are made for a GPU: it processes them without a loop over sessions, and two copies move
all of them to the device. Passes have few different forms, so a CUDA graph can be captured for
every form. This module uses no model and no cache.

A row attends to the keys on its path, which is split into a prefix and a tail. Only the row's
position decides where the path is split. The prefix is read in chunks of whole pages. Neighbouring
rows with the same prefix are processed together, so that they share the reads of each chunk. The
tail has up to 96 positions and contains every node of a draft; its keys are gathered from their
slots. A tree therefore needs no mask, and the result of a row depends only on its path and on
nothing else in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.cache.pages import PAGE
from tandem.protos.types import MAX_NODES

STEP = 32  # the length of a row's prefix grows in steps of this many positions
# if a row has a prefix, its tail is longer than this, so the tail contains a whole draft
REACH = MAX_NODES
TAIL = REACH + STEP  # maximum number of positions in a tail
# maximum chunks per prefix: with 8 key heads, each multiprocessor of an H100 gets about one chunk
MAX_CHUNKS = 16
MIN_CHUNK_LENGTH = 256  # minimum positions per chunk; shorter chunks take no less time
QUERY_BLOCK = 64  # queries that attend to a chunk together: the size of a tensor core instruction
# the same number for float32, which uses no tensor cores: kernels for 64 queries would take half a
# minute to compile
FLOAT32_QUERY_BLOCK = 16
HEADER = 1  # numbers at the start of `RowPlan.reads`, before the records: the count of chunks
RECORD = 6  # numbers in the record that describes a chunk


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layout of the KV cache in pages. The longest prefix has `width` pages. Keys of padding
    rows are stored in the slot `padding`. At most `block_rows` rows attend to a prefix at once.
    """

    padding: int
    width: int
    block_rows: int = QUERY_BLOCK


@dataclass(frozen=True, slots=True)
class PassShape:
    """The form of a pass: the number of its rows, and the number of rows that give logits, both
    including padding. The form determines the sizes of the arrays of a pass.
    """

    rows: int
    outputs: int

    @property
    def sizes(self) -> list[int]:
        """The sizes of the int64 arrays of a pass, in order."""
        return [self.rows, self.rows, self.rows, self.outputs, TAIL * self.rows]

    def room(self, width: int) -> int:
        """Return the maximum count of int32 numbers in a pass of this form."""
        return 2 * self.rows + HEADER + self.rows * (MAX_CHUNKS * RECORD + width)


class RowPlan:
    """The data of one pass. Its arrays are views of two tensors, `longs` (int64) and `ints`
    (int32), so two copies move a pass to a device. On the CPU, `ints` contains exactly the numbers
    that are used. On a device, `ints` has the size `room`, which is enough for every pass of the
    same form.
    """

    def __init__(
        self, shape: PassShape, longs: torch.Tensor, ints: torch.Tensor, num_logits: int, room: int
    ) -> None:
        self.shape = shape
        self.longs = longs
        self.ints = ints
        self.num_logits = num_logits  # rows that give logits, without padding
        ids, positions, slots, logits_rows, tail_slots = longs.split(shape.sizes)
        self.token_ids = ids[None]  # [1, rows]
        self.positions = positions[None]  # [1, rows]
        self.slots = slots  # slots of the new keys, [rows]
        self.logits_rows = logits_rows  # [outputs]
        self.tail_slots = tail_slots  # slots of the keys in the tails, [rows * TAIL]
        self.counts = ints[: 2 * shape.rows]  # per row: keys in the tail, chunks in the prefix
        # the count of chunks, then a record for each chunk: its first row, the end of its rows,
        # its first position, the end of its positions, its index in its prefix, and the index of
        # its first page in `reads`; the pages of all chunks come last
        self.reads = ints[2 * shape.rows :]
        self._room = room
        # pinned buffers on the CPU for copies to the device, if this pass is on a device
        self._staging: list[torch.Tensor] = []
        self._copied: torch.cuda.Event | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.shape.rows

    def to(self, device: torch.device) -> RowPlan:
        """Return a copy of the pass on a device, with enough memory for every pass of the same
        form.
        """
        longs = torch.empty_like(self.longs, device=device)
        ints = torch.zeros(self._room, dtype=torch.int32, device=device)
        on_device = RowPlan(self.shape, longs, ints, self.num_logits, self._room)
        if device.type == "cuda":
            sizes = ((each.shape, each.dtype) for each in (longs, ints))
            on_device._staging = [
                torch.empty(shape, dtype=dtype, pin_memory=True) for shape, dtype in sizes
            ]
        on_device.copy_from(self)
        return on_device

    def copy_from(self, other: RowPlan) -> None:
        """Copy the arrays of another pass of the same form, which must be on the CPU. The copy to a
        device may still be running when this method returns.
        """
        if self._copied:
            self._copied.synchronize()  # wait until the last copy no longer reads the buffers
        staging = self._staging or (self.longs, self.ints)
        for on_device, there, given in zip(
            (self.longs, self.ints), staging, (other.longs, other.ints), strict=True
        ):
            there[: len(given)].copy_(given)
            if self._staging:
                on_device[: len(given)].copy_(there[: len(given)], non_blocking=True)
        if self._staging:
            self._copied = self._copied or torch.cuda.Event()
            self._copied.record()


def block_rows(repeat: int, dtype: torch.dtype) -> int:
    """Return how many rows attend to a chunk together if each row has `repeat` queries per key
    head.
    """
    queries = FLOAT32_QUERY_BLOCK if dtype == torch.float32 else QUERY_BLOCK
    return max(queries // (1 << (repeat - 1).bit_length()), 1)


def chunk_lengths(prefixes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the chunk length of each prefix, in positions. A chunk consists of whole pages, and
    its length depends only on the length of the prefix.
    """
    found: npt.NDArray[np.int64] = np.maximum(
        -(-prefixes // (PAGE * MAX_CHUNKS)) * PAGE, MIN_CHUNK_LENGTH
    )
    return found
