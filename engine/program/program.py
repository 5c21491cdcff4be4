"""A program: what a network does for the rows of a plan, one action after the other. Actions are
stretches of instructions for a CPU, and calls as the network made them, or fused ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils._pytree import tree_flatten

from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.program.layout import Extent

Plan: TypeAlias = PathPlan | RowPlan


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
    step: Any  # what instructions need to know of it


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


class Program:
    """What a network does for the rows of a plan, as `actions` on so many values: the first three
    are the tokens, their positions and the rows whose logits are wanted; `logits` is the number of
    those. Instructions point to what is `kept`. A pass runs within the scope that `entered` makes
    of its plan, which gives what actions need to know of it. `fused`: how many operations are
    fused, and how many there are.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        values: int,
        logits: int,
        kept: Sequence[Any],
        fused: tuple[int, int],
        entered: Callable[[Any], AbstractContextManager[Any]],
    ) -> None:
        self.fused = fused
        self._entered = entered
        self._kept, self._values, self._logits = kept, values, logits
        last = {number: place for place, each in enumerate(actions) for number in each.reads}
        last.pop(logits, None)
        self._actions = [(each, list[int]()) for each in actions]
        for number, place in last.items():
            self._actions[place][1].append(number)

    def __call__(self, plan: Plan) -> torch.Tensor:
        """The logits of the rows that are wanted, [wanted, vocab]."""
        values: list[Any] = [None] * self._values
        values[:3] = plan.token_ids, plan.positions, plan.logits_rows
        with self._entered(plan) as step:
            now = Now(values, plan.count, len(plan.logits_rows), step)
            for action, read_last in self._actions:
                action.run(now)
                for number in read_last:
                    values[number] = None
        logits: torch.Tensor = values[self._logits]
        return logits
