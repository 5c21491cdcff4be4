"""The instructions of a program in the format that program.cpp reads, and the memory that each
instruction reads and writes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch

from tandem.engine.forward.cpu.kernels import ElementType
from tandem.engine.forward.cpu.paths import PathPlan
from tandem.engine.program.layout import View

POINTER, LONG, INT, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class Operation(IntEnum):
    """The operations that an instruction can perform, with the same values as in program.cpp."""

    LINEAR = 0
    ATTEND = 1
    NORM = 2  # NORM and all operations below process each row separately
    GATE = 3
    STORE = 4
    COPY = 5
    NEGATE = 6
    ADD = 7
    SUBTRACT = 8
    MULTIPLY = 9
    ROTATE = 10


class Linear(ctypes.Structure):
    """The parameters of a linear layer's instruction, with the same fields as in program.cpp."""

    _fields_ = (
        *((name, POINTER) for name in ("weights", "grouping", "bias")),
        *((name, LONG) for name in ("inputs", "outputs", "numbers", "stride")),
        *((name, INT) for name in ("kind", "result_kind")),
    )


class Attend(ctypes.Structure):
    """The parameters of an instruction for attention, with the same fields as in program.cpp."""

    _fields_ = (
        *((name, POINTER) for name in ("keys", "values", "sinks")),
        *((name, LONG) for name in ("heads", "shared", "size", "value_size", "window")),
        *((name, REAL) for name in ("scale", "cap")),
    )


class Instruction(ctypes.Structure):
    """An instruction of a program, with the same fields as in program.cpp."""

    _fields_ = (
        *((name, INT) for name in ("operation", "kind", "source_kind")),
        ("number", REAL),
        *((name, LONG) for name in ("outer", "inner")),
        *((name, View) for name in ("result", "one", "other", "third")),
        ("layer", POINTER),
    )


class Step(ctypes.Structure):
    """The paths of a step's rows and the slots of the rows' new keys, with the same fields as in
    program.cpp.
    """

    _fields_ = (
        *((name, POINTER) for name in ("pages", "tables", "prefixes", "tails", "slots", "stored")),
        ("page", LONG),
    )
    kept: Sequence[torch.Tensor]

    @classmethod
    def of(cls, plan: PathPlan) -> Step:
        """Convert a path plan to the format that program.cpp reads. The result keeps the tensors of
        the plan alive.
        """
        paths, slots = plan.paths, plan.slots
        stored = torch.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        tensors = (paths.pages, paths.tables, paths.prefixes, paths.tails, paths.slots, stored)
        step = cls(*(each.data_ptr() for each in tensors), paths.page)
        step.kept = tensors  # the step points to the memory of these tensors
        return step


@dataclass(frozen=True, slots=True)
class Place:
    """A place in memory: the key of a storage, and a view of this storage."""

    storage: Hashable
    view: View


@dataclass(slots=True)
class Written:
    """An instruction that refers to storages by keys. When the stretch that contains the
    instruction is built, it is converted to an `Instruction`, which refers to storages by indices.
    """

    operation: Operation
    kind: ElementType
    outer: int
    inner: int
    result: Place  # its storage is None if the instruction writes to the KV pool
    reads: Sequence[Place]
    number: float = 0.0
    source_kind: int = 0
    layer: int | None = None

    @property
    def by_row(self) -> bool:
        """Whether the instruction processes each row separately."""
        return self.operation >= Operation.NORM


def groups_of(program: Sequence[Written]) -> list[int]:
    """Return the group index of each instruction. Consecutive instructions that process each row
    separately form one group. Every other instruction forms a group of its own.
    """
    numbers = list[int]()
    for index, each in enumerate(program):
        same = index and each.by_row and program[index - 1].by_row
        numbers.append(numbers[-1] + (not same) if index else 0)
    return numbers
