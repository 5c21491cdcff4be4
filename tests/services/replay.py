"""Replays of captured passes on a CPU: the operations of the captured pass run again on the same
memory, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    """Runs operations and records them, with the very tensors that they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """PyTorch calls this method instead of the operation."""
        given = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a captured pass cannot wait for values that the device computes")
        self._operations.append((func, args, kwargs or {}, given))
        return given

    def replay(self) -> None:
        """Run all recorded operations again."""
        for func, args, kwargs, before in self._operations:
            now = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(now), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def capture(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """A `Capture` of `engine.forward.cuda.graphs` for a CPU: one pass runs, and a second one is
    captured.
    """
    run()
    with Recorder() as recorder:
        logits = run()
    return recorder.replay, logits


def emulate(patch: pytest.MonkeyPatch) -> None:
    """Build layers from operations that can be recorded; within `emulated`, passes by rows are
    built so, too.
    """
    patch.setattr("tandem.engine.forward.cpu.panels.kernels", lambda: None)
