"""The data of a pass by rows, in arrays whose sizes hardly depend on the tokens that are fed.

Such a pass suits a GPU. There is no loop over sessions, and two copies move the pass to the device.
Passes have so few forms that one pass of each form can be captured and replayed. This module knows
no model and no cache.

A row attends to the keys on its path, which is cut into a prefix and a tail. Only the row's
position decides where the path is cut. The prefix is read page by page, in chunks, and a block of
neighbouring rows reads each chunk together. The tail has up to 96 positions and holds every node of
a draft; its keys are gathered. A tree therefore needs no mask, and the result of a row depends only
on its path and on nothing else in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.cache.pages import PAGE
from tandem.protos.types import MAX_NODES

STEP = 32  # positions from one cut to the next
REACH = MAX_NODES  # every tail after a cut is longer than this, so it holds a whole draft
TAIL = REACH + STEP  # most positions of a tail
MAX_CHUNKS = 16  # most chunks of a prefix; with 8 key heads, one for each multiprocessor of an H100
MIN_CHUNK_LENGTH = 256  # fewest positions of a chunk; shorter chunks take no less time
QUERY_BLOCK = 64  # queries that attend to a chunk at once; a tensor core instruction takes 64
# queries of a block in float32, without tensor cores; blocks of 64 would compile for half a minute
FLOAT32_QUERY_BLOCK = 16
HEADER = 1  # numbers before the records in `RowPlan.reads`: only the number of chunks
RECORD = 6  # numbers that describe a chunk


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layout of keys in pages. The longest prefix has `width` pages. Keys of padding rows go to
    the slot `padding`. At most `block_rows` rows attend to a prefix at once.
    """

    padding: int
    width: int
    block_rows: int = QUERY_BLOCK


@dataclass(frozen=True, slots=True)
class PassShape:
    """The form of a pass: the number of its rows, and the number of rows that give logits, padding
    included. The form decides the sizes of the arrays.
    """

    rows: int
    outputs: int

    @property
    def sizes(self) -> list[int]:
        """The sizes of a pass's arrays of int64, in order."""
        return [self.rows, self.rows, self.rows, self.outputs, TAIL * self.rows]

    def room(self, width: int) -> int:
        """Return how many int32 numbers a pass of this form needs at most."""
        return 2 * self.rows + HEADER + self.rows * (MAX_CHUNKS * RECORD + width)


class RowPlan:
    """One pass by rows. The arrays of a pass lie in two tensors, `longs` (int64) and `ints`
    (int32), so two copies move a pass to a device. On the CPU, `ints` has exactly the numbers that
    are used. On a device, it has `room` numbers.
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
        self.tail_slots = tail_slots  # slots of all keys of all tails, [rows * TAIL]
        self.counts = ints[: 2 * shape.rows]  # for each row: keys of the tail, chunks of the prefix
        # the number of chunks, then a record for each chunk: its first row and the row after its
        # last, its first position and the position after its last, its number in its prefix, and
        # where its pages begin in `reads`
        self.reads = ints[2 * shape.rows :]
        self._room = room
        # pinned copies on the CPU, if this pass is on a device
        self._staging: list[torch.Tensor] = []
        self._copied: torch.cuda.Event | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.shape.rows

    def to(self, device: torch.device) -> RowPlan:
        """Return a copy of the pass on a device, with room for every pass of its form."""
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
        """Copy the arrays of another pass of the same form, which lies on the CPU. The copy to a
        device may still be running when this method returns.
        """
        if self._copied:
            self._copied.synchronize()  # the last copy must have left the CPU
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
    """Return how many rows attend to a chunk at once if `repeat` queries of each row share a key
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
