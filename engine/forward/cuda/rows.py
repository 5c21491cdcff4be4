"""One pass by rows: all that it needs, in arrays whose sizes hardly depend on what is fed.

What suits a GPU: no loop over sessions, two copies to the device, and so few forms that a pass of
each can be captured and replayed. Knows no model and no cache.

A row sees its path, and its position alone decides where the path is cut. The prefix is read page
by page, at once for neighbours; the tail, up to 96 positions, holds every node of a draft and is
gathered. So a tree needs no mask, and what a row computes depends on its path and on nothing else
in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tandem.protos.types import MAX_NODES

STEP = 32  # positions from one cut to the next
REACH = MAX_NODES  # a tail after a cut has more positions, so all of a draft is in it
TAIL = REACH + STEP  # and no more than this
WIDEST = 32  # rows of a run


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Where keys lie: in pages of `page` slots, of which the longest prefix has `width`. Those of
    padding rows go to the slot `padding`.
    """

    padding: int
    page: int
    width: int


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


@dataclass(frozen=True, slots=True)
class KeyRuns:
    """Runs of rows and the keys that each run sees. Run i is the rows from bounds[i] to
    bounds[i + 1], at most `widest`, and sees lengths[i] keys: in the pages pages[i], or, without
    any, from starts[i] on. int32.
    """

    bounds: torch.Tensor  # [runs + 1]
    starts: torch.Tensor  # [runs + 1], the last unused
    lengths: torch.Tensor  # [runs]
    widest: int
    pages: torch.Tensor | None = None  # [runs, width]


@dataclass(frozen=True, slots=True)
class PrefixAndTail:
    """The two parts of what rows see, where a row is that of several query heads."""

    prefix: KeyRuns
    tail: KeyRuns
    short: torch.Tensor  # bool [rows * repeat, 1]: no prefix


class RowPlan:
    """One pass. Its arrays lie in two tensors, so that two copies move it: `longs`, int64, and
    `spans`, int32 [3 + width, rows + 1]: bounds and lengths of the runs of prefixes, lengths of
    tails, and below those the pages of prefixes, run by run.
    """

    def __init__(
        self, shape: PassShape, longs: torch.Tensor, spans: torch.Tensor, wanted: int
    ) -> None:
        self.shape = shape
        self.longs, self.spans = longs, spans
        self.wanted = wanted  # rows with logits that are no padding
        ids, positions, slots, logits_rows, tail_slots = longs.split(shape.sizes)
        self.token_ids = ids[None]  # [1, rows]
        self.positions = positions[None]  # [1, rows]
        self.slots = slots  # of the new keys, [rows]
        self.logits_rows = logits_rows  # [outputs]
        self.tail_slots = tail_slots  # of all keys of all tails, [rows * TAIL]

    def to(self, device: torch.device) -> RowPlan:
        """The same on a device."""
        if device.type == "cpu":
            return self
        longs, spans = (torch.empty_like(each, device=device) for each in (self.longs, self.spans))
        on_device = RowPlan(self.shape, longs, spans, self.wanted)
        on_device.copy_from(self)
        return on_device

    def copy_from(self, other: RowPlan) -> None:
        """Take over the arrays of a pass of the same shape, from the CPU."""
        for on_device, given in ((self.longs, other.longs), (self.spans, other.spans)):
            on_cpu = on_device.device.type == "cpu"
            on_device.copy_(given if on_cpu else given.pin_memory(), non_blocking=True)

    def prefix_and_tail(self, repeat: int) -> PrefixAndTail:
        """What rows see when each is that of `repeat` query heads; the same in all layers of a
        pass, but not in its replays: they have to compute it again.
        """
        rows = self.shape.rows
        bounds, lengths, tails = self.spans[:3].unbind()
        pages = self.spans[3:].reshape(rows + 1, -1)[:-1]
        every = torch.arange(rows + 1, dtype=torch.int32, device=bounds.device)
        short = (self.positions[0] < TAIL)[:, None].expand(-1, repeat)
        return PrefixAndTail(
            KeyRuns(bounds * repeat, every, lengths[:-1], WIDEST * repeat, pages),
            KeyRuns(every * repeat, every * TAIL, tails[:-1], repeat),
            short.reshape(-1, 1),
        )
