"""Find and call the compiled kernels for this processor.

If a compiler is available, the kernels are built with the package, once per instruction set. The
kernels are called through ctypes. Without compiled kernels, PyTorch does all the work.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tandem.engine.forward.cpu.builds import SOURCES, runnable
from tandem.engine.forward.cpu.paths import Paths
from tandem.engine.forward.dense import AttentionOptions

# A call that reads at least this many numbers runs on all threads. At this size, a call takes 60 us
# with two threads and 100 us with one. At a fifth of this size, a second thread saves no time.
WORTH_SHARING = 1 << 17


class ElementType(IntEnum):
    """The formats in which numbers are stored, with the same values as in vectors.h."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    BFLOAT16_PAIRS = 3  # bfloat16, with two adjacent inputs stored side by side (VNNI)
    BYTES = 4  # BYTES and the types below are quantized codes, which a Grouping describes
    NIBBLES = 5
    FLOAT8 = 6


ELEMENT_TYPES = {
    torch.float32: ElementType.FLOAT32,
    torch.bfloat16: ElementType.BFLOAT16,
    torch.float16: ElementType.FLOAT16,
}


class Grouping(ctypes.Structure):
    """Describes how to dequantize codes. The fields are those of `Grouping` in groups.h."""

    _fields_ = (
        ("scales", ctypes.c_void_p),
        ("supers", ctypes.c_void_p),
        ("group", ctypes.c_int64),
        ("span", ctypes.c_int64),
        ("kind", ctypes.c_int32),
        ("parts", ctypes.c_int32),
        ("zero", ctypes.c_float),
    )


class Weights(NamedTuple):
    """The weights of one or more linear layers. `memory` contains panels of numbers or of quantized
    codes, [layers * panels, in, width]; panels of 4-bit codes are half as wide. `outputs` is the
    number of outputs per layer. `grouping` is the address of a Grouping if the weights are codes.
    """

    memory: torch.Tensor
    kind: int
    layers: int
    outputs: int
    grouping: int | None


def plain_weights(panels: torch.Tensor, outputs: int) -> Weights:
    """Wrap unquantized panels [layers, panels, in / k_pack, width, k_pack] in a `Weights`."""
    kind = ELEMENT_TYPES[panels.dtype] if panels.shape[-1] == 1 else ElementType.BFLOAT16_PAIRS
    return Weights(panels, kind, len(panels), outputs, None)


class Activation(IntEnum):
    """The activation functions of gated layers, with the same values as in gate.cpp."""

    SILU = 0
    GELU_TANH = 1


class Kernels:
    """One build of the kernels. `width` is the number of outputs per panel. If `bf16_pairs` is
    true, the kernels multiply two bfloat16 inputs at a time. Results do not depend on the number of
    `threads`.
    """

    def __init__(self, file: Path, sources: int | None = None) -> None:
        for openmp in Path(torch.__file__).parents[1].glob("torch.libs/libgomp*"):
            # export the symbols of OpenMP, because PyTorch for ARM does not
            ctypes.CDLL(str(openmp), ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(file))
        self.library = library
        library.tandem_sources.restype = ctypes.c_uint
        if library.tandem_sources() != (sources or SOURCES):
            raise OSError(f"{file} was not built from the current sources of the kernels")
        self.name = file.name.partition(".")[0].removeprefix("_")
        self.width = int(library.tandem_width())
        self.bf16_pairs = bool(library.tandem_pairs())
        self.threads = 1
        self._linear = library.tandem_linear
        pointer, number, kind = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        rows = (pointer, number, number)
        self._linear.argtypes = (*rows, pointer, number, number, *[pointer] * 4)
        self._linear.argtypes += (number, *[kind] * 4)
        self._linear.restype = None
        self._attend = library.tandem_attend
        real = ctypes.c_float
        optional = (real, real, pointer, kind, kind)
        sizes = (number, number)
        self._attend.argtypes = (*[pointer] * 4, *[number] * 5, *[pointer] * 5, *sizes, *optional)
        self._attend.restype = None
        self._norm = library.tandem_norm
        self._norm.argtypes = (*rows, pointer, real, pointer, kind, kind)
        self._norm.restype = None
        self._program = library.tandem_program
        self._program.argtypes = (pointer, number, number, pointer, pointer, kind, number)
        self._program.restype = None
        self._gate = library.tandem_gate
        self._gate.argtypes = (*rows, pointer, kind, kind, kind)
        self._gate.restype = None

    def linear(
        self,
        rows: torch.Tensor,  # [rows, in], floating-point
        weights: Weights,
        bias: torch.Tensor | None,  # [layers, out], float32
        ends: torch.Tensor | None,  # [layers], int64: end index of each layer's rows
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return rows @ weights.T + bias, [rows, out] of `dtype`. Layer i is applied to the rows
        from ends[i - 1] to ends[i], or to all rows if `ends` is None. All tensors are contiguous
        and on the CPU.
        """
        memory, kind, layers, outputs, grouping = weights
        result = rows.new_empty(rows.shape[0], outputs, dtype=dtype)
        optional = (None if each is None else each.data_ptr() for each in (bias, ends))
        kinds = kind, ELEMENT_TYPES[rows.dtype], ELEMENT_TYPES[dtype]
        # each row uses one layer, so a call reads the weights of at most rows.shape[0] layers
        read = memory.numel() * min(layers, rows.shape[0]) // layers
        self._linear(
            *(rows.data_ptr(), *rows.shape, memory.data_ptr(), outputs, layers, grouping),
            *(*optional, result.data_ptr(), outputs, *kinds, self.sharing(read)),
        )
        return result

    def attend(
        self,
        query: torch.Tensor,  # [rows, heads, size], floating-point
        keys: torch.Tensor,  # [slots, kv heads, size], of the same dtype
        values: torch.Tensor,  # [slots, kv heads, value size]
        paths: Paths,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Return the attention output of each row over the keys on its path, [rows, heads, value
        size]. All tensors are contiguous and on the CPU. The bits of a row's output depend only on
        its own path. Raises RuntimeError if dtypes differ or `query` and `keys` differ in size.
        """
        rows, heads, size = query.shape
        if not (query.dtype == keys.dtype == values.dtype and keys.shape[2] == size):
            kinds = f"dtypes {query.dtype}, {keys.dtype} and {values.dtype}"
            raise RuntimeError(f"inputs do not match: sizes {size} and {keys.shape[2]}, {kinds}")
        result = query.new_empty(rows, heads, values.shape[2])
        sinks = None if options.sinks is None else options.sinks.float().contiguous()
        self._attend(
            *(each.data_ptr() for each in (query, keys, values, result)),
            *(rows, heads, *keys.shape[1:], values.shape[2]),
            *(each.data_ptr() for each in (paths.pages, paths.tables, paths.prefixes)),
            *(paths.tails.data_ptr(), paths.slots.data_ptr(), paths.page, options.window or 0),
            size**-0.5 if options.scaling is None else options.scaling,
            *(options.softcap or 0.0, None if sinks is None else sinks.data_ptr()),
            *(ELEMENT_TYPES[query.dtype], self.threads),
        )
        return result

    def norm(self, rows: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Divide rows [..., size] by their root mean square, and multiply them by a float32 weight
        [size]. All tensors are contiguous and on the CPU. Raises RuntimeError if sizes differ.
        """
        size = rows.shape[-1]
        if size != len(weight):
            raise RuntimeError(f"rows of size {size} do not match a weight of size {len(weight)}")
        result = torch.empty_like(rows)
        self._norm(
            *(rows.data_ptr(), rows.numel() // size, size, weight.data_ptr(), epsilon),
            *(result.data_ptr(), ELEMENT_TYPES[rows.dtype], self.sharing(rows.numel())),
        )
        return result

    def gate(self, rows: torch.Tensor, activation: Activation) -> torch.Tensor:
        """Return activation(first half) * second half of rows [rows, 2 * size], as [rows, size].
        The rows must be contiguous and on the CPU. Raises RuntimeError if the size of a row is odd.
        """
        if rows.shape[1] % 2:
            raise RuntimeError(f"rows of odd size {rows.shape[1]} cannot be split into halves")
        count, size = rows.shape[0], rows.shape[1] // 2
        result = rows.new_empty(count, size)
        self._gate(
            *(rows.data_ptr(), count, size, result.data_ptr(), activation),
            *(ELEMENT_TYPES[rows.dtype], self.sharing(rows.numel())),
        )
        return result

    def run(
        self,
        program: ctypes.Array[Any],
        rows: int,
        sources: ctypes.Array[ctypes.c_void_p],
        step: ctypes.Structure,
    ) -> None:
        """Run the instructions of a program for `rows` rows, as program.cpp describes."""
        given = program, len(program), rows, sources, ctypes.byref(step)
        self._program(*given, self.threads, WORTH_SHARING)

    def sharing(self, numbers: int) -> int:
        """Return the number of threads for a call that reads `numbers` numbers. A small call runs
        on one thread, and any other call runs on all threads. Using only some threads would be
        slow, because OpenMP ends the other threads and starts them again for the next call.
        """
        return self.threads if numbers >= WORTH_SHARING else 1


@cache
def kernels() -> Kernels | None:
    """Return the best build that this processor can run, or None if no build can be loaded."""
    for file in runnable():
        with suppress(OSError, AttributeError):  # OpenMP is missing, or the build is outdated
            return Kernels(file)
    return None


def required_kernels() -> Kernels:
    """Return the compiled kernels. Callers must check `panels.why_unsupported` first."""
    found = kernels()
    assert found, "there are no compiled kernels for this processor"
    return found


def use_threads(count: int) -> None:
    """Set the number of threads for all computations. If there are compiled kernels, PyTorch itself
    uses one thread. With several threads, PyTorch would round the last elements of each thread's
    share differently, so results would depend on the number of rows.
    """
    if build := kernels():
        build.threads = count
    torch.set_num_threads(1 if build else count)
