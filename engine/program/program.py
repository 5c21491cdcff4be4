"""A program computes the same logits as a network, for the rows of a plan. A program runs actions
one after the other. An action is a stretch of instructions for a CPU, a call that the network made,
or a fused call.
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
    """A linear function of the number of rows in a pass. If `of_logits` is set, only the rows that
    give logits are counted.
    """

    extent: Extent
    of_logits: bool = False

    def at(self, now: Now) -> int:
        """Return the value of the function in a running pass."""
        count = now.num_logits if self.of_logits else now.rows
        return int(self.extent.fixed + self.extent.each * count)


@dataclass(frozen=True, slots=True)
class Value:
    """The index of a tensor that is given to a program or that the program computes."""

    number: int


@dataclass(slots=True)
class Now:
    """The state of a running pass: the values computed so far, the number of rows, and the number
    of rows that give logits.
    """

    values: list[Any]
    rows: int
    num_logits: int
    step: Any  # the data of the pass that instructions read


class Action(Protocol):
    """An action that a program runs in a pass."""

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values that the action reads."""

    def run(self, now: Now) -> None:
        """Run the action in a pass, and store the computed values in the state of the pass."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A call that the network made. `given` contains the arguments: constants, references to
    values, and numbers that depend on the number of rows. `shape` is the structure of the
    positional and named arguments. It contains indices into `given` in place of the arguments.
    `made` lists the indices of the values that the call produces.
    """

    function: Callable[..., Any]
    given: Sequence[Any]
    shape: tuple[Sequence[Any], dict[str, Any]]
    made: Sequence[int | None]

    @property
    def reads(self) -> Sequence[int]:
        """The indices of the values that are arguments of the call."""
        return [each.number for each in self.given if isinstance(each, Value)]

    def run(self, now: Now) -> None:
        """Make the call with the values of a running pass, and store its results as values of the
        pass.
        """
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
    """Return `shape` with every index replaced by the object at this index in `given`. PyTorch's
    `tree_unflatten` is not used because it takes longer than most calls.
    """
    if isinstance(shape, int):
        return given[shape]
    return type(shape)(_filled(each, given) for each in shape)


class Program:
    """Computes the same logits as a network, for the rows of a plan. A program runs `actions` one
    after the other. `values` is the number of values that the actions use.

    The first three values are the tokens, their positions and the indices of the rows that give
    logits. `logits` is the index of the value that contains the logits. `kept` lists objects that
    must stay alive because instructions point to them. Each pass runs inside the context manager
    that `entered` returns for the plan of the pass. The context manager provides the data of the
    pass that actions need. `fused` is a pair: the number of fused operations, and the number of all
    operations.
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
        """Run the program for the rows of a plan, and return the logits [num_logits, vocab] of
        those rows that give logits.
        """
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
