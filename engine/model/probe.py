"""Find out what a network requires of attention, by one short forward pass that records the calls
of attention.

This module knows what the attention of this engine supports. The module must not depend on where
the network came from. The message of an Unusable error continues a sentence that begins with the
name of the network's class.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tandem.engine.cache.pool import LayerGeometry
from tandem.engine.forward import attention
from tandem.protos.errors import Unusable

NAME = "tandem_probe"
ROWS = 4
Mask = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The geometry of a network's attention. `context_length` is the maximum length of a text at
    which every token attends to exactly the tokens that the network's own masks allow.
    """

    layers: tuple[LayerGeometry, ...]
    vocab_size: int
    context_length: int


@dataclass(slots=True)
class Probe:
    """The record of a probing pass: the shapes that each layer would store in the KV cache, and the
    masks that the pass used.
    """

    layers: dict[int, LayerGeometry] = field(default_factory=dict)
    masks: list[Mask] = field(default_factory=list)
    # pairs of the index of a mask and a sliding window
    used: set[tuple[int, int | None]] = field(default_factory=set)


_current: ContextVar[Probe] = ContextVar("probe")


@contextmanager
def probing(probe: Probe) -> Iterator[None]:
    """Inside this context, record every attention call in `probe`."""
    token = _current.set(probe)
    try:
        yield
    finally:
        _current.reset(token)


def install_attention(network: PreTrainedModel, longest: int) -> ProbeResult:
    """Make a network use this engine's attention, and return what the network requires of it.
    Raises Unusable if the network's results would differ with this engine's attention. The context
    length is `longest`, or less if this engine's masks agree with the network's masks only up to a
    shorter length.
    """
    network.set_attn_implementation(NAME)
    config = network.config.get_text_config()
    probe = Probe()
    logits = _pass(network, probe)
    if logits.shape[1] != 2:
        raise Unusable("cannot compute the logits of chosen tokens alone (logits_to_keep)")
    layers = [probe.layers.get(layer) for layer in range(config.num_hidden_layers)]
    attending = tuple(layer for layer in layers if layer)
    if len(attending) < len(layers) or len(probe.layers) > len(layers):
        raise Unusable(f"has attention in {len(attending)} of its {len(layers)} layers only")
    with network.device:  # the network's masks contain tensors on this device
        lengths = [_covered(probe.masks[mask], window, longest) for mask, window in probe.used]
    covered = min(lengths, default=longest)
    if not covered:
        raise Unusable("is not causal: its tokens attend to later tokens")
    network.set_attn_implementation(attention.NAME)
    return ProbeResult(tuple(la.within(covered) for la in attending), logits.shape[2], covered)


def refuse_class(kind: type[PreTrainedModel]) -> None:
    """Raise Unusable for a network class that can be refused before its weights are read."""
    if kind._is_stateful:
        raise Unusable(
            "keeps a recurrent state, which cannot be rolled back when a draft is rejected"
        )
    if not kind._can_set_attn_implementation():
        raise Unusable("does not attend through transformers' AttentionInterface")


def _pass(network: PreTrainedModel, probe: Probe) -> torch.Tensor:
    """Feed four tokens to a network, and return the logits of two of them, [1, 2, vocab]. Attention
    returns zeros in this pass, so only the shape of the logits is meaningful.
    """
    device = network.device
    with torch.inference_mode(), probing(probe):
        try:
            logits: torch.Tensor = network(
                input_ids=torch.zeros(1, ROWS, dtype=torch.long, device=device),
                position_ids=torch.arange(ROWS, device=device)[None],
                attention_mask=None,
                use_cache=False,
                logits_to_keep=torch.tensor([3, 1], device=device),
            ).logits
        except Unusable:
            raise
        except Exception as error:  # a network may raise any error
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise Unusable(f"cannot be fed tokens of several sessions ({reason})") from error
    return logits


def probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, rows, size]
    key: torch.Tensor,  # [1, kv heads, rows, size]
    value: torch.Tensor,  # [1, kv heads, rows, value size]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Record an attention call. transformers calls this function instead of an attention
    implementation. Returns zeros in the shape of attention's result, [1, rows, heads, value size].
    Raises Unusable for options that this engine's attention does not support.
    """
    probe = _current.get()
    attention.refuse_options(options)
    layer: int = module.layer_idx  # type: ignore[assignment]
    if layer in probe.layers:
        raise Unusable("attends more than once in a layer")
    if query.shape[2] != ROWS or key.shape[2] != ROWS:
        raise Unusable("computes attention for only some of the tokens")
    probe.layers[layer] = LayerGeometry(
        heads=key.shape[1],
        key_size=key.shape[3],
        value_size=value.shape[3],
        repeat=query.shape[1] // key.shape[1],
        fused=softcap is None and s_aux is None,
        window=sliding_window,
    )
    if attention_mask is not None:
        probe.used.add((_number(attention_mask, len(probe.masks)), sliding_window))
    return query.new_zeros(1, ROWS, query.shape[1], value.shape[3]), None


def number_mask(
    *, q_length: int, kv_length: int, mask_function: Mask, device: torch.device, **_: Any
) -> torch.Tensor:
    """Record a mask. transformers calls this function to make a mask. Returns a mask [1, 1,
    queries, keys] whose elements are all the mask's index, so that `probe_attention` recognises the
    mask.
    """
    probe = _current.get()
    probe.masks.append(mask_function)
    return torch.full((1, 1, q_length, kv_length), float(len(probe.masks) - 1), device=device)


def _number(mask: torch.Tensor, count: int) -> int:
    """Return the index that `number_mask` wrote into a mask. Raises Unusable if the network has
    changed the mask.
    """
    number = int(mask.flatten()[0])
    if not 0 <= number < count or not bool((mask == number).all()):
        raise Unusable("modifies the attention masks that transformers makes")
    return number


def _covered(mask: Mask, window: int | None, longest: int) -> int:
    """Return the largest length, up to `longest`, of a text for which a network's mask and this
    engine's mask are equal.
    """

    def differs(row: int) -> bool:
        keys = torch.arange(row + 2)  # the last key is the next token, which must be masked
        start = torch.zeros((), dtype=torch.long)
        theirs = mask(start, start, torch.tensor(row), keys).expand(keys.shape)
        ours = keys <= row
        if window is not None:
            ours &= keys > row - window
        return not torch.equal(theirs, ours)

    return bisect_left(range(longest), True, key=differs)


AttentionInterface.register(NAME, probe_attention)
AttentionMaskInterface.register(NAME, number_mask)
