"""Record passes. A recording tells which operations a network's own code calls, one after the
other, and with which tensors.

Each layer of this project, each leaf module, and each call of attention is recorded as one call.
All other calls are PyTorch's operations. This module does not know what a recording is used for.
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
OURS = (GatedMLP, PanelExperts, RMSNorm)  # PanelLinear is a leaf module, so it needs no entry
UNKNOWN_BEFORE = {torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded}
UNKNOWN_BEFORE.add(torch.Tag.dynamic_output_shape)


class Unrecordable(Exception):
    """A recording of the network would not be valid for other rows."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operation, a layer, or `attention.attention`. `spec` arranges the objects in
    `given` as the arguments of the call. `made` are the objects that the call returned.
    """

    function: Any
    given: Sequence[Any]
    spec: TreeSpec
    made: Sequence[Any]
    shape: TreeSpec  # the nested form of `made`


@dataclass(frozen=True, slots=True)
class Tape:
    """All calls of a pass over the rows of a plan, and the logits of the pass."""

    plan: Plan
    calls: Sequence[Call]
    logits: torch.Tensor


class Recorder(TorchDispatchMode):
    """Notes the calls of a pass, except calls within other calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._within = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note an operation and run it. PyTorch calls this method instead of the operation. Raises
        Unrecordable if a recording could not repeat the operation.
        """
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        with self:  # an operation that consists of others is noted as those others
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if UNKNOWN_BEFORE & set(func.tags) and not _by_numbers(func, args):
            raise Unrecordable(f"it calls {func}, which a recording cannot repeat for other rows")
        made = func(*args, **kwargs)
        self.note(func, args, kwargs, made)
        return made

    def begin(self, *_: Any) -> None:
        """Note that a layer is called, so that calls within it are not noted."""
        self._within += 1

    def end(self, layer: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        """Note the call of a layer that has returned."""
        self._within -= 1
        if not self._within:
            self.note(layer, args, kwargs, made)

    def attend(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Note attention and run it. The network calls this method instead of attention."""
        self._within += 1
        made = attention.attention(module, *args, **kwargs)
        self._within -= 1
        if not self._within:
            self.note(attention.attention, (module, *args), kwargs, made)
        return made

    def note(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Keep a call with all its tensors. While they are kept, no later tensor can have the id of
        one of them.
        """
        self.calls.append(Call(function, *tree_flatten((args, kwargs)), *tree_flatten(made)))


def _by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation indexes only by integers, so that the shape of its output is known."""
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
    """Return the recording of a network's pass over the rows of a plan. `run` makes the pass.
    Raises Unrecordable if the calls depend on the contents of tensors.
    """
    with torch.inference_mode(), _recording(network) as recorder:
        logits = run(plan)
    return Tape(plan, recorder.calls, logits)
