"""Recordings of passes: which operations a network's own code calls, one after the other, and with
which tensors.

A layer of ours and a layer without others inside are one call each, and so is attention; of all
else the calls are PyTorch's operations. Knows nothing of what becomes of a recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten
from transformers import AttentionInterface, PreTrainedModel

from tandem.engine.forward import attention
from tandem.engine.forward.cpu.experts import PanelExperts
from tandem.engine.forward.gated import GatedMLP
from tandem.engine.forward.norm import RMSNorm
from tandem.engine.program.program import Plan

NAME = "tandem_recorded"
OURS = (GatedMLP, PanelExperts, RMSNorm)  # and PanelLinear, which has none inside
UNKNOWN_BEFORE = {torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded}
UNKNOWN_BEFORE.add(torch.Tag.dynamic_output_shape)


class Unrecordable(Exception):
    """A recording would not hold for other rows."""


@dataclass(frozen=True, slots=True)
class Call:
    """Of an operation, a layer, or `attention.attention`: what it was `given`, of which `spec`
    makes its arguments, and the tensors that it `made`.
    """

    function: Any
    given: Sequence[Any]
    spec: TreeSpec
    made: Sequence[Any]
    shape: TreeSpec  # of what it made


@dataclass(frozen=True, slots=True)
class Tape:
    """All calls of a pass over the rows of a plan, and the logits that came of it."""

    plan: Plan
    calls: Sequence[Call]
    logits: torch.Tensor


class Recorder(TorchDispatchMode):
    """Notes calls, but for those within another."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._within = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch instead of an operation."""
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        with self:  # one that is made of others counts as those
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if UNKNOWN_BEFORE & set(func.tags) and not _by_numbers(func, args):
            raise Unrecordable(f"it calls {func}")
        made = func(*args, **kwargs)
        self.note(func, args, kwargs, made)
        return made

    def begin(self, *_: Any) -> None:
        """A layer is called."""
        self._within += 1

    def end(self, layer: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        """A layer has answered."""
        self._within -= 1
        if not self._within:
            self.note(layer, args, kwargs, made)

    def attend(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Called instead of attention."""
        self._within += 1
        made = attention.attention(module, *args, **kwargs)
        self._within -= 1
        if not self._within:
            self.note(attention.attention, (module, *args), kwargs, made)
        return made

    def note(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Keep a call, and with it all its tensors, so that no other can pass for one of them."""
        self.calls.append(Call(function, *tree_flatten((args, kwargs)), *tree_flatten(made)))


def _by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation picks what is at some places, as many as there are numbers of them."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(each is None or each.dtype is torch.long for each in args[1])


@contextmanager
def _recording(network: PreTrainedModel) -> Iterator[Recorder]:
    recorder = Recorder()
    hooks = []
    for layer in network.modules():
        if isinstance(layer, OURS) or not list(layer.children()):
            hooks.append(layer.register_forward_pre_hook(recorder.begin))
            hooks.append(layer.register_forward_hook(recorder.end, with_kwargs=True))
    AttentionInterface.register(NAME, recorder.attend)
    network.set_attn_implementation(NAME)
    try:
        with recorder:
            yield recorder
    finally:
        network.set_attn_implementation(attention.NAME)
        for hook in hooks:
            hook.remove()


def record(network: PreTrainedModel, run: Callable[[Any], torch.Tensor], plan: Plan) -> Tape:
    """The pass of a network over the rows of a plan, which `run` makes it go through. Raises
    Unrecordable if what it calls depends on what is in its tensors.
    """
    with torch.inference_mode(), _recording(network) as recorder:
        logits = run(plan)
    return Tape(plan, recorder.calls, logits)
