"""A program computes for the rows of a plan what a network computes, one action after the other. An
action is a stretch of instructions for a CPU, a call that the network made, or a fused call.
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
    """A number that depends on the number of rows or, if `of_logits`, on the number of rows that
    give logits.
    """

    extent: Extent
    of_logits: bool = False

    def at(self, now: Now) -> int:
        """Return the number in a pass."""
        count = now.num_logits if self.of_logits else now.rows
        return int(self.extent.fixed + self.extent.each * count)


@dataclass(frozen=True, slots=True)
class Value:
    """The number of a tensor that is given to a program or that the program makes."""

    number: int


@dataclass(slots=True)
class Now:
    """The state of a running pass: its values so far, and its numbers of rows."""

    values: list[Any]
    rows: int
    num_logits: int
    step: Any  # the data of the pass that instructions need


class Action(Protocol):
    """An action that a program takes in a pass."""

    @property
    def reads(self) -> Sequence[int]:
        """The numbers of the values that the action reads."""

    def run(self, now: Now) -> None:
        """Carry out the action in a pass. This makes some values of the pass."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A call that the network made. `given` holds constants, values and counted numbers. `shape`
    holds the positional and the named arguments, with indices into `given` in place of the objects
    themselves. `made` are the numbers of the values that the call makes.
    """

    function: Callable[..., Any]
    given: Sequence[Any]
    shape: tuple[Sequence[Any], dict[str, Any]]
    made: Sequence[int | None]

    @property
    def reads(self) -> Sequence[int]:
        """The numbers of the values that the call is given."""
        return [each.number for each in self.given if isinstance(each, Value)]

    def run(self, now: Now) -> None:
        """Make the call with the values of the pass, and keep its results as values."""
        given = list(self.given)
        for index, each in enumerate(given):
            if isinstance(each, Value):
                given[index] = now.values[each.number]
            elif isinstance(each, Counted):
                given[index] = each.at(now)
        args, kwargs = self.shape
        named = {name: _filled(each, given) for name, each in kwargs.items()}
        found = self.function(*(_filled(each, given) for each in args), **named)
        made = (found,) if isinstance(found, torch.Tensor) else tree_flatten(found)[0]
        for number, tensor in zip(self.made, made, strict=True):
            if number is not None:
                now.values[number] = tensor


def _filled(shape: Any, given: Sequence[Any]) -> Any:
    """Replace the indices in `shape` by the objects in `given`. PyTorch's `tree_unflatten` would
    take longer than most calls.
    """
    if isinstance(shape, int):
        return given[shape]
    return type(shape)(_filled(each, given) for each in shape)


class Program:
    """Computes for the rows of a plan the same as a network. A program runs `actions` one after the
    other. `values` is the number of values that the actions use.

    The first three values are the tokens, their positions and the rows that give logits. `logits`
    is the number of the value that holds the logits. `kept` are the objects that instructions point
    to. A pass runs within the scope that `entered` returns for its plan. The scope gives the data
    of the pass that actions need. `fused` is a pair: the number of fused operations, and the number
    of all operations.
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
        self._kept = kept
        self._values = values
        self._logits = logits
        last = {number: index for index, each in enumerate(actions) for number in each.reads}
        last.pop(logits, None)
        self._actions = [(each, list[int]()) for each in actions]
        for number, index in last.items():
            self._actions[index][1].append(number)

    def __call__(self, plan: Plan) -> torch.Tensor:
        """Return the logits of the rows of a plan that give logits, [num_logits, vocab]."""
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
