"""A program: stretches of instructions, each carried out in one call of the kernels, and between
them what no rule takes, as the network called it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_flatten

from tandem.engine.forward.cpu.kernels import required_kernels
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.program.instructions import Instruction, Place, Step, Written
from tandem.engine.program.layout import Extent, View
from tandem.engine.program.memory import allocated


@dataclass(frozen=True, slots=True)
class Counted:
    """A number that depends on how many rows there are, or how many of them are `wanted`."""

    extent: Extent
    wanted: bool = False

    def at(self, now: Now) -> int:
        """What it is in a pass."""
        return int(self.extent.fixed + self.extent.each * (now.wanted if self.wanted else now.rows))


@dataclass(frozen=True, slots=True)
class Value:
    """The number of a tensor that a program has or makes on its way."""

    number: int


@dataclass(slots=True)
class Now:
    """A pass, and its values so far."""

    values: list[Any]
    rows: int
    wanted: int
    step: Step


class Action(Protocol):
    """What a program does next."""

    @property
    def reads(self) -> Sequence[int]:
        """Numbers of the values that it takes."""

    def run(self, now: Now) -> None:
        """Make some values."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A call as the network made it: `given` holds values, and numbers that are counted; `shape` is
    arguments and named ones, with places in it instead of what is given; `made` are the values that
    come of it.
    """

    function: Callable[..., Any]
    given: Sequence[Any]
    shape: tuple[Sequence[Any], dict[str, Any]]
    made: Sequence[int | None]

    @property
    def reads(self) -> Sequence[int]:
        """Of what it is given."""
        return [each.number for each in self.given if isinstance(each, Value)]

    def run(self, now: Now) -> None:
        """Call it."""
        given = list(self.given)
        for place, each in enumerate(given):
            if isinstance(each, Value):
                given[place] = now.values[each.number]
            elif isinstance(each, Counted):
                given[place] = each.at(now)
        args, kwargs = self.shape
        named = {name: _filled(each, given) for name, each in kwargs.items()}
        found = self.function(*(_filled(each, given) for each in args), **named)
        made = (found,) if isinstance(found, torch.Tensor) else tree_flatten(found)[0]
        for number, tensor in zip(self.made, made, strict=True):
            if number is not None:
                now.values[number] = tensor


def _filled(shape: Any, given: Sequence[Any]) -> Any:
    """What was given in places: PyTorch's `tree_unflatten` takes longer than most calls."""
    if isinstance(shape, int):
        return given[shape]
    return type(shape)(_filled(each, given) for each in shape)


@dataclass(frozen=True, slots=True)
class Shown:
    """A value on the memory that a stretch has written, which is one itself."""

    number: int
    memory: int
    dtype: torch.dtype
    sizes: Sequence[Counted]
    strides: Sequence[Counted]
    offset: Counted

    @property
    def reads(self) -> Sequence[int]:
        """The memory."""
        return [self.memory]

    def run(self, now: Now) -> None:
        """Make the tensor."""
        sizes, strides = ([each.at(now) for each in some] for some in (self.sizes, self.strides))
        memory: torch.Tensor = now.values[self.memory].view(self.dtype)
        now.values[self.number] = memory.as_strided(sizes, strides, self.offset.at(now))


class Stretch:
    """Instructions in a row. Of the storages that they read or write, `known` are on values, or
    tensors that stay; `own` are values to be, memory that is read after them; all others share
    memory. `sizes` are bytes of a row.
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
        self._offsets, self._size = allocated(written, hidden)
        self._sources: dict[Hashable, int] = {None: 0}  # the memory that is shared comes first
        self._program = (Instruction * len(written))(*(self._instruction(each) for each in written))
        given = {**known, **own}
        self._given = [(place, given[key]) for key, place in self._sources.items() if place]

    @property
    def reads(self) -> Sequence[int]:
        """Values that there are before, or memory that it writes itself."""
        return [given for _, given in self._given if isinstance(given, int)]

    def run(self, now: Now) -> None:
        """Carry them out in one call."""
        shared = torch.empty(self._size * now.rows, dtype=torch.uint8)
        for number, size in self._own.items():
            now.values[number] = torch.empty(size * now.rows, dtype=torch.uint8)
        addresses = (ctypes.c_void_p * len(self._sources))(shared.data_ptr())
        for place, given in self._given:
            tensor = now.values[given] if isinstance(given, int) else given
            addresses[place] = tensor.untyped_storage().data_ptr()
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
        """A view whose source has its number."""
        view = View.from_buffer_copy(place.view)
        if place.storage in self._offsets:
            view.source = 0
            view.offset.each += self._offsets[place.storage]
        else:
            view.source = self._sources.setdefault(place.storage, len(self._sources))
        return view


class Program:
    """What a network does for the rows of a plan, as `actions` on so many values: the first three
    are the tokens, their positions and the rows whose logits are wanted; `logits` is the number of
    those. Instructions point to what is `kept`. `fused`: how many operations are instructions, and
    how many there are.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        values: int,
        logits: int,
        kept: Sequence[Any],
        fused: tuple[int, int],
    ) -> None:
        self.fused = fused
        self._kept, self._values, self._logits = kept, values, logits
        last = {number: place for place, each in enumerate(actions) for number in each.reads}
        last.pop(logits, None)
        self._actions = [(each, list[int]()) for each in actions]
        for number, place in last.items():
            self._actions[place][1].append(number)

    def __call__(self, plan: PathPlan) -> torch.Tensor:
        """The logits of the rows that are wanted, [wanted, vocab]."""
        slots = plan.slots
        stored = torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        values: list[Any] = [None] * self._values
        values[:3] = plan.token_ids, plan.positions, plan.logits_rows
        now = Now(values, plan.count, len(plan.logits_rows), Step.of(plan, stored))
        for action, read_last in self._actions:
            action.run(now)
            for number in read_last:
                values[number] = None
        logits: torch.Tensor = values[self._logits]
        return logits
