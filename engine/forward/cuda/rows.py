"""One pass by rows: all that it needs, in arrays whose sizes hardly depend on what is fed.

What suits a GPU: no loop over sessions, two copies to the device, and so few forms that a pass of
each can be captured and replayed. Knows no model and no cache.

A row sees its path, and its position alone says where the path is cut. The prefix lies in one
stretch, which neighbours share; the tail, up to 96 positions, holds every node of a draft and is
gathered where a side branch leaves the stretch. So a tree needs no mask, and what a row computes
depends on its path and on nothing else in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protos.types import MAX_NODES

STEP = 32  # positions from one cut to the next
REACH = MAX_NODES  # a tail after a cut has more positions, so all of a draft is in it
TAIL = REACH + STEP  # and no more than this
WIDEST = 32  # rows of a run


@dataclass(frozen=True, slots=True)
class Form:
    """What the sizes of a pass depend on: its rows and how many of them give logits, padding
    included; whether some lie on side branches.
    """

    rows: int
    kept: int
    branched: bool

    @property
    def sizes(self) -> list[int]:
        """Of a pass's arrays of int64, in order."""
        return [self.rows, self.rows, self.rows, self.kept, TAIL * self.rows * self.branched]


@dataclass(frozen=True, slots=True)
class Spans:
    """Runs of rows and the keys that each run sees. Run i is the rows from bounds[i] to
    bounds[i + 1], at most `widest`, and sees lengths[i] keys from starts[i] on. int32.
    """

    bounds: torch.Tensor  # [runs + 1]
    starts: torch.Tensor  # [runs + 1], the last unused
    lengths: torch.Tensor  # [runs]
    widest: int


@dataclass(frozen=True, slots=True)
class Halves:
    """The two parts of what rows see, where a row stands for several query heads."""

    prefix: Spans
    tail: Spans
    short: torch.Tensor  # bool [rows * repeat, 1]: no prefix


class Rows:
    """One pass. Its arrays lie in two tensors, so that two copies move it: `longs`, int64, and
    `spans`, int32 [6, rows + 1], bounds, starts and lengths of prefixes and of tails.
    """

    def __init__(self, form: Form, longs: torch.Tensor, spans: torch.Tensor, wanted: int) -> None:
        self.form = form
        self.longs, self.spans = longs, spans
        self.wanted = wanted  # rows with logits that are no padding
        ids, positions, places, logits_rows, tail_places = longs.split(form.sizes)
        self.token_ids = ids[None]  # [1, rows]
        self.positions = positions[None]  # [1, rows]
        self.places = places  # of the new keys, [rows]
        self.logits_rows = logits_rows  # [kept]
        self.tail_places = tail_places  # of all keys of all tails, [rows * TAIL] if branched

    def on(self, device: torch.device) -> Rows:
        """The same on a device."""
        if device.type == "cpu":
            return self
        longs, spans = (torch.empty_like(each, device=device) for each in (self.longs, self.spans))
        own = Rows(self.form, longs, spans, self.wanted)
        own.become(self)
        return own

    def become(self, other: Rows) -> None:
        """Take over the arrays of a pass of the same form, from the CPU."""
        for own, given in ((self.longs, other.longs), (self.spans, other.spans)):
            on_cpu = own.device.type == "cpu"
            own.copy_(given if on_cpu else given.pin_memory(), non_blocking=True)

    def halves(self, repeat: int) -> Halves:
        """What rows see when each stands for `repeat` query heads; the same in all layers of a
        pass, but not in its replays: they have to compute it anew.
        """
        bounds, starts, lengths, *tail = self.spans.unbind()
        short = (self.positions[0] < TAIL)[:, None].expand(-1, repeat)
        return Halves(
            Spans(bounds * repeat, starts, lengths[:-1], WIDEST * repeat),
            Spans(tail[0] * repeat, tail[1], tail[2][:-1], repeat),
            short.reshape(-1, 1),
        )
