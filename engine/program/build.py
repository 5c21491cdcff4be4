"""Build programs from recordings of passes. On a CPU, a recorded call is translated into
instructions if there is a rule for it, and stays a call otherwise. On a CUDA device, some calls are
fused into one.

The builder compares recordings of two passes with different numbers of rows, to find out what
depends on the number of rows. A result that depends on weights alone and is equal in both passes is
stored in the program and not computed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch.utils._pytree import tree_unflatten

from tandem.engine.cache.pool import KVPool
from tandem.engine.forward import attention
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.forward.cuda.rows import RowPlan
from tandem.engine.program.fusions import Calls
from tandem.engine.program.instructions import Step, Written
from tandem.engine.program.layout import Counts, Twins
from tandem.engine.program.program import Action, Plain, Program
from tandem.engine.program.rotary import fused
from tandem.engine.program.rules import Rules
from tandem.engine.program.stretch import Shown, Stretch
from tandem.engine.program.tape import Call, Tape, Unrecordable
from tandem.engine.program.twins import Origin, TwinTensors, tensors_in
from tandem.engine.program.writer import storage_of


class Builder(TwinTensors):
    """Builds one program from the recordings of two passes. If the passes have path plans, the
    program consists of instructions and calls. If the passes have row plans, the program consists
    of fused calls.
    """

    def __init__(self, tapes: tuple[Tape, Tape], pool: KVPool, context: int) -> None:
        one, two = (tape.plan for tape in tapes)
        num_logits = len(one.logits_rows), len(two.logits_rows)
        super().__init__(Counts((one.count, two.count), num_logits))
        self._rules = Rules(self._counts, pool, context)
        self._instructions = isinstance(one, PathPlan)
        self._in_step = partial(_in_step, pool, context)
        self._tapes = tapes
        self._makers: dict[int, int] = {}  # per tensor: index of the call that made it
        # for each storage: the indices of the calls that changed it
        self._changes: dict[Hashable, list[int]] = {}
        self._written: dict[int, list[Written]] = {}  # the instructions of each call

    def program(self) -> Program:
        """Return one program that can replace both passes. Raises Unrecordable if no program can
        replace both passes.
        """
        first, second = self._tapes
        inputs = (
            (plan.token_ids, plan.positions, plan.logits_rows) for plan in (first.plan, second.plan)
        )
        for one, two in zip(*inputs, strict=True):
            self._enter(one, two, Origin.PLAIN)
            self._value(one)
        self._inputs = set(self._origins)
        if len(first.calls) != len(second.calls):
            raise Unrecordable("with other rows, the network makes more or fewer calls")
        for number, pair in enumerate(zip(first.calls, second.calls, strict=True)):
            self._classify(number, *pair)
        plain, shown = self._needed()
        early, late = self._parts(plain)
        calls = [*map(self._plain, early)]
        logits = self._value(first.logits)
        if not self._instructions:
            known = {self._values[id(each)]: each for each in self._tensors()}
            fusing = Calls(calls, known, logits)
            left = fusing.fused()
            return Program(left, self._count, logits, (), fusing.counts, self._in_step)
        actions: list[Action] = [*calls, *self._actions(late, shown)]
        others = sum(isinstance(part, int) for part in late)
        counts = len(self._written), len(self._written) + others
        kept = self._rules.kept
        return Program(
            actions, self._count, logits, kept, counts, lambda plan: nullcontext(Step.of(plan))
        )

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors of the first pass that are among the values of the program."""
        first = self._tapes[0]
        inputs = first.plan.token_ids, first.plan.positions, first.plan.logits_rows
        found = [*inputs, *(each for call in first.calls for each in tensors_in(call.made))]
        return (each for each in found if id(each) in self._values)

    def _classify(self, number: int, one: Call, two: Call) -> None:
        """Decide how a recorded call becomes part of the program: its results are stored as
        constants, it is translated into instructions, or it stays a call. Raises Unrecordable if
        the two passes make different calls.
        """
        if one.function is not two.function or one.spec != two.spec or one.shape != two.shape:
            raise Unrecordable(
                f"with other rows, the network calls {two.function} instead of {one.function}"
            )
        for first, second in zip(one.given, two.given, strict=True):
            if isinstance(first, torch.Tensor):
                self._enter(first, second, Origin.KEPT)
        self._note_change(number, one)
        made = list(zip(tensors_in(one.made), tensors_in(two.made), strict=True))
        for first, _ in made:
            self._makers.setdefault(id(first), number)
        new = [pair for pair in made if storage_of(pair[0]) not in self._origins]
        if len(new) != sum(storage_of(second) not in self._others for _, second in made):
            raise Unrecordable(f"{one.function} makes new tensors only for some numbers of rows")
        origin = Origin.PLAIN
        if new and self._constant(one) and all(map(torch.equal, *zip(*made, strict=True))):
            origin = Origin.KEPT
        elif (
            self._instructions
            and new
            and (sizes := self._sizes(new))
            and (written := self._rules.translate(one, two))
        ):
            origin = Origin.WRITTEN
            self._written[number] = written
            self._rules.sizes |= sizes
        for pair in made:
            self._enter(*pair, origin)

    def _note_change(self, number: int, call: Call) -> None:
        """Record which tensor a call changes in place, if any. Raises Unrecordable if the call
        changes an input, a weight or a result of instructions.
        """
        if isinstance(call.function, torch._ops.OpOverload) and call.function._schema.is_mutable:
            target = storage_of(call.given[0])
            if self._origins[target] is not Origin.PLAIN or target in self._inputs:
                raise Unrecordable(
                    f"it calls {call.function} on an input, a weight or a result of instructions"
                )
            self._changes.setdefault(target, []).append(number)

    def _constant(self, call: Call) -> bool:
        given = tensors_in(call.given)
        return all(self._origins[storage_of(each)] is Origin.KEPT for each in given)

    def _sizes(self, tensors: Sequence[Twins]) -> dict[Hashable, int]:
        """Return the bytes per row of each tensor's storage. Return an empty mapping if the size of
        a storage is not proportional to the number of rows.
        """
        found = dict[Hashable, int]()
        for pair in tensors:
            one, two = (each.untyped_storage().nbytes() for each in pair)
            found[storage_of(pair[0])] = one // self._counts.rows[0]
            if one * self._counts.rows[1] != two * self._counts.rows[0]:
                return {}
        return found

    def _needed(self) -> tuple[set[int], list[torch.Tensor]]:
        """Return the indices of the calls that must remain calls of PyTorch. Also return the
        results of instructions that are read by these calls or by the program's caller.
        """
        plain, shown = set[int](), dict[int, torch.Tensor]()
        needed = [self._tapes[0].logits]
        for written in self._written.values():
            reads = {place.storage for each in written for place in each.reads}
            known = reads & self._bases.keys()
            needed += [self._bases[key] for key in known if self._origins[key] is Origin.PLAIN]
        while needed:
            tensor = needed.pop()
            if self._origins[storage_of(tensor)] is Origin.WRITTEN:
                shown[id(tensor)] = tensor
            elif not self._literal(tensor) and id(tensor) in self._makers:
                changes = self._changes.get(storage_of(tensor), [])
                for number in {self._makers[id(tensor)], *changes} - plain:
                    plain.add(number)
                    needed += tensors_in(self._tapes[0].calls[number].given)
        return plain, list(shown.values())

    def _parts(self, plain: set[int]) -> tuple[list[int], list[int | list[Written]]]:
        """Return the calls that use no instruction's result, so they can run first. Also return
        the rest of the program in order: calls, and lists of the instructions between them. Calls
        are given by their indices.
        """
        early, late = list[int](), list[int | list[Written]]()
        behind = {key for key, origin in self._origins.items() if origin is Origin.WRITTEN}
        for number, call in enumerate(self._tapes[0].calls):
            if number in self._written:
                if not late or isinstance(late[-1], int):
                    late.append([])
                late[-1] += self._written[number]  # type: ignore[operator]
            elif number in plain:
                if behind & set(map(storage_of, tensors_in(call.given))):
                    late.append(number)
                    behind |= set(map(storage_of, tensors_in(call.made)))
                else:
                    early.append(number)
        return early, late

    def _actions(
        self, late: Sequence[int | list[Written]], shown: Sequence[torch.Tensor]
    ) -> Iterator[Action]:
        """Yield the actions that run after the first calls, in order. An action is a stretch of
        instructions, a call, or the creation of a tensor from memory that a stretch has written.
        """
        users: dict[Hashable, set[int]] = {storage_of(each): {-1} for each in shown}
        for number, part in enumerate(late):
            for each in part if isinstance(part, list) else ():
                for place in (each.result, *each.reads):
                    users.setdefault(place.storage, set()).add(number)
        own = {
            key: self._value()
            for key, numbers in users.items()
            if len(numbers) > 1 and key in self._rules.sizes
        }
        known: dict[Hashable, int | torch.Tensor] = {
            key: self._value(tensor) if self._origins[key] is Origin.PLAIN else tensor
            for key, tensor in self._bases.items()
            if self._origins[key] is not Origin.WRITTEN and key in users
        }
        for part in late:
            if isinstance(part, int):
                yield self._plain(part)
                continue
            yield Stretch(fused(part, own.keys()), known, own, self._rules.sizes)
            made = {each.result.storage for each in part}
            for tensor in shown:
                if storage_of(tensor) in made:
                    yield self._shown(tensor, own[storage_of(tensor)])

    def _plain(self, number: int) -> Plain:
        one, two = (tape.calls[number] for tape in self._tapes)
        if one.function is attention.attention and self._instructions:
            raise Unrecordable("there is no rule that translates its attention into instructions")
        given = [self._argument(*pair) for pair in zip(one.given, two.given, strict=True)]
        made = [self._value(each) if isinstance(each, torch.Tensor) else None for each in one.made]
        shape = tree_unflatten(range(len(given)), one.spec)
        return Plain(one.function, given, shape, made)

    def _shown(self, tensor: torch.Tensor, memory: int) -> Shown:
        other = self._twins[id(tensor)]
        sizes, strides = (
            [self._counted(*pair) for pair in zip(*some, strict=True)]
            for some in ((tensor.shape, other.shape), (tensor.stride(), other.stride()))
        )
        offset = self._counted(*(int(each.storage_offset()) for each in (tensor, other)))
        return Shown(self._value(tensor), memory, tensor.dtype, sizes, strides, offset)


def _in_step(pool: KVPool, context: int, plan: RowPlan) -> AbstractContextManager[None]:
    """Return the context manager in which attention calls use the plan of a pass."""
    return attention.in_step(attention.AttentionStep(plan, pool, context))
