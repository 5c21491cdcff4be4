"""Triton's interpreter, for tests of kernels on a machine without a CUDA device.

Such a test imports the name `interpreted`, so that the test is skipped on machines without Triton
or with a device; there, `tests/gpu` runs the kernels. `tests/conftest.py` turns on Triton's
interpreter before anything imports Triton. This module corrects mistakes of version 3.6 of the
interpreter:

- bfloat16 is stored as 16 bits. They were multiplied as integers, and rounded towards zero.
- NumPy no longer makes an index of an array with one element.
- Each call of a function within a kernel replaced Triton's functions once more, which took half of
  the time.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton cannot be imported, which interprets the kernels")

import triton.language as tl
from triton import knobs
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

if not knobs.runtime.interpret:
    pytest.skip("kernels are compiled here, and tests/gpu runs them", allow_module_level=True)
WIDTH = 16  # products that a tensor core adds up at once
_ordered = False
_cast, _cast_float = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp
_patch, _replace = interpreter._patch_lang_tensor, interpreter._patch_lang
EVERYWHERE = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


@contextmanager
def ordered_sums() -> Generator[None]:
    """Within the scope, compute products as a tensor core does: 16 summands at once, exactly, then
    the next 16. Outside the scope NumPy multiplies, and its order of sums depends on the number of
    rows.
    """
    global _ordered
    _ordered = True
    try:
        yield
    finally:
        _ordered = False


def _numbers(handle: Any) -> Any:
    """Return the content of a tensor, float32."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)
    return handle.data.astype(np.float32)


def _rounded(data: Any) -> Any:
    """Return the bits of the nearest bfloat16 numbers."""
    whole = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(torch.bfloat16)
    return TensorHandle(
        whole.view(torch.int16).numpy().view(np.uint16).reshape(np.shape(data)), tl.bfloat16
    )


def _dot(_: Any, a: Any, b: Any, total: Any, *__: Any) -> Any:
    left, right, added = _numbers(a), _numbers(b), total.data.astype(np.float32)
    if not _ordered:
        return TensorHandle(left @ right + added, total.dtype.scalar)
    for start in range(0, left.shape[1], WIDTH):
        part = slice(start, start + WIDTH)
        products = left[:, None, part].astype(np.float64) * right.T[None, :, part]
        added = (added + products.sum(2)).astype(np.float32)
    return TensorHandle(added, total.dtype.scalar)


def _to_bfloat16(known: Any) -> Any:
    def cast(self: Any, source: Any, dtype: Any, *rest: Any) -> Any:
        if source.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
            return _rounded(source.data)
        return known(self, source, dtype, *rest)

    return cast


def _with_index(tensor: Any, scope: Any) -> None:
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _replace_all(_: Any) -> Any:
    return _replace(EVERYWHERE)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.rewrite()(*args, **kwargs)


InterpreterBuilder.create_dot = _dot
InterpreterBuilder.cast_impl = _to_bfloat16(_cast)
InterpreterBuilder.create_fp_to_fp = _to_bfloat16(_cast_float)
InterpreterBuilder.create_fp_trunc = InterpreterBuilder.cast_impl
interpreter._patch_lang_tensor = _with_index
interpreter._patch_lang = _replace_all
interpreter.InterpretedFunction.__call__ = _call
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""Of a test of kernels: NumPy need not warn of infinities."""
