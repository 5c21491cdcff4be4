"""One pass by rows: all that it needs, in arrays whose sizes hardly depend on what is fed.

What suits a GPU: no loop over sessions, two copies to the device, and so few forms that a pass of
each can be captured and replayed. Knows no model and no cache.

A row sees its path, and its position alone decides where the path is cut. The prefix is read page
by page, in pieces, at once for neighbours; the tail, up to 96 positions, holds every node of a
draft and is gathered. So a tree needs no mask, and what a row computes depends on its path and on
nothing else in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tandem.engine.cache.pages import PAGE
from tandem.protos.types import MAX_NODES

STEP = 32  # positions from one cut to the next
REACH = MAX_NODES  # a tail after a cut has more positions, so all of a draft is in it
TAIL = REACH + STEP  # and no more than this
PIECES = 16  # of a prefix, at most: with 8 heads of keys as many as an H100 has multiprocessors
LEAST_PIECE = 256  # positions: shorter ones take as long
QUERIES = 64  # that attend to a piece together: what one instruction of a tensor core takes
SINGLE_QUERIES = 16  # of float32, which tensor cores do not take: 64 take half a minute to compile
HEADER = 1  # of what is read: the number of pieces
RECORD = 6  # numbers that describe a piece


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Where keys lie: in pages of which the longest prefix has `width`. Those of padding rows go to
    the slot `padding`. As many rows as `together` attend to a prefix at once.
    """

    padding: int
    width: int
    together: int = QUERIES


@dataclass(frozen=True, slots=True)
class PassShape:
    """What the sizes of a pass depend on: its rows and how many of them give logits, padding
    included.
    """

    rows: int
    outputs: int

    @property
    def sizes(self) -> list[int]:
        """Of a pass's arrays of int64, in order."""
        return [self.rows, self.rows, self.rows, self.outputs, TAIL * self.rows]

    def room(self, width: int) -> int:
        """Numbers of int32 that a pass needs, at most."""
        return 2 * self.rows + HEADER + self.rows * (PIECES * RECORD + width)


class RowPlan:
    """One pass. Its arrays lie in two tensors, so that two copies move it: `longs`, int64, and
    `ints`, int32, as many as are used, of which a device has `room` for more.
    """

    def __init__(
        self, shape: PassShape, longs: torch.Tensor, ints: torch.Tensor, wanted: int, room: int
    ) -> None:
        self.shape = shape
        self.longs, self.ints = longs, ints
        self.wanted = wanted  # rows with logits that are no padding
        ids, positions, slots, logits_rows, tail_slots = longs.split(shape.sizes)
        self.token_ids = ids[None]  # [1, rows]
        self.positions = positions[None]  # [1, rows]
        self.slots = slots  # of the new keys, [rows]
        self.logits_rows = logits_rows  # [outputs]
        self.tail_slots = tail_slots  # of all keys of all tails, [rows * TAIL]
        self.counts = ints[: 2 * shape.rows]  # by rows: keys of the tail, pieces of the prefix
        # the number of pieces, then of each its first row and the one after its last, its first
        # position and the one after its last, its number in its prefix, and where its pages begin
        # in this very array
        self.reads = ints[2 * shape.rows :]
        self._room = room
        self._staging: list[torch.Tensor] = []  # on the CPU, of one on a device
        self._copied: torch.cuda.Event | None = None

    @property
    def count(self) -> int:
        """Its rows."""
        return self.shape.rows

    def to(self, device: torch.device) -> RowPlan:
        """The same on a device, with room for every pass of its form."""
        longs = torch.empty_like(self.longs, device=device)
        ints = torch.zeros(self._room, dtype=torch.int32, device=device)
        on_device = RowPlan(self.shape, longs, ints, self.wanted, self._room)
        if device.type == "cuda":
            sizes = ((each.shape, each.dtype) for each in (longs, ints))
            on_device._staging = [
                torch.empty(shape, dtype=dtype, pin_memory=True) for shape, dtype in sizes
            ]
        on_device.copy_from(self)
        return on_device

    def copy_from(self, other: RowPlan) -> None:
        """Take over the arrays of a pass of the same form, from the CPU: on a device this is not
        waited for.
        """
        if self._copied:
            self._copied.synchronize()  # what was copied last has left the CPU
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


def rows_together(repeat: int, dtype: torch.dtype) -> int:
    """Rows that attend to a piece together, where so many query heads share a head of keys."""
    queries = SINGLE_QUERIES if dtype == torch.float32 else QUERIES
    return max(queries // (1 << (repeat - 1).bit_length()), 1)


def piece_lengths(prefixes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions of the pieces of prefixes: whole pages, each by its own length alone."""
    found: npt.NDArray[np.int64] = np.maximum(-(-prefixes // (PAGE * PIECES)) * PAGE, LEAST_PIECE)
    return found
