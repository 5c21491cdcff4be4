"""Record forward passes. A recording lists the operations that a network's own code calls, one
after the other, with the tensors that they use.

Each layer of this project, each leaf module, and each call of attention is recorded as a single
call. All other recorded calls are operations of PyTorch. This module does not depend on how
recordings are used.
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
    """A recording of the network would not be valid for passes over other rows."""


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call of an operation, a layer, or `attention.attention`. `spec` tells how the
    objects in `given` form the arguments of the call. `made` lists the objects that the call
    returned.
    """

    function: Any
    given: Sequence[Any]
    spec: TreeSpec
    made: Sequence[Any]
    shape: TreeSpec  # the structure in which the call returned the objects of `made`


@dataclass(frozen=True, slots=True)
class Tape:
    """The recording of a pass over the rows of a plan: all calls of the pass, and its logits."""

    plan: Plan
    calls: Sequence[Call]
    logits: torch.Tensor


class Recorder(TorchDispatchMode):
    """Records the calls of a pass, except calls inside other recorded calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._within = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record an operation of PyTorch and run it. PyTorch calls this method in place of every
        operation during a recording. Raises Unrecordable if the operation could not be repeated for
        other rows.
        """
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        with self:  # a composite operation is recorded as the operations that it consists of
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
        if UNKNOWN_BEFORE & set(func.tags) and not _by_numbers(func, args):
            raise Unrecordable(f"it calls {func}, which a recording cannot repeat for other rows")
        made = func(*args, **kwargs)
        self.note(func, args, kwargs, made)
        return made

    def begin(self, *_: Any) -> None:
        """Register the start of a layer's call. Calls inside the layer are not recorded."""
        self._within += 1

    def end(self, layer: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        """Record a finished call of a layer, unless it ran inside another recorded call."""
        self._within -= 1
        if not self._within:
            self.note(layer, args, kwargs, made)

    def attend(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Record and run an attention call. The network calls this method instead of attention."""
        self._within += 1
        made = attention.attention(module, *args, **kwargs)
        self._within -= 1
        if not self._within:
            self.note(attention.attention, (module, *args), kwargs, made)
        return made

    def note(self, function: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Add a call with all its tensors to the recording. While the recording keeps these
        tensors, no later tensor can have the same id.
        """
        self.calls.append(Call(function, *tree_flatten((args, kwargs)), *tree_flatten(made)))


def _by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation only indexes by integers, so that the shape of its output is known in
    advance.
    """
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
    """Record a forward pass of a network over the input rows that `plan` describes. `run` runs the
    pass. Raises Unrecordable if the calls depend on the contents of tensors.
    """
    with torch.inference_mode(), _recording(network) as recorder:
        logits = run(plan)
    return Tape(plan, recorder.calls, logits)
