"""Split a network among ranks. The tensor-parallel plan that transformers has for the network's
class names the layers to split. Each rank keeps its part of the split layers, and adds up the
partial sums of all ranks.

Each rank gathers the partial sums of all ranks, and adds them in the order of ranks. `all_reduce`
would be faster, but the order of its additions depends on the number of rows, so a row's result
would depend on the other rows of the pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.protos.errors import Unusable

OUTPUTS, INPUTS = "colwise", "rowwise"  # transformers' names for the two ways to split a weight
WHOLE = {"embedding_rowwise", "replicated_with_grad_allreduce", "colwise_gather_output"}
# each rank keeps layers of these styles unsplit: embeddings, norms of heads, the output layer


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the `count` ranks among which a network is split."""

    rank: int
    count: int

    def device(self, name: str) -> str:
        """Return the device of this rank: the CUDA device with the rank's number, or the named
        device if it is not a CUDA device.
        """
        return f"cuda:{self.rank}" if name.startswith("cuda") else name

    def part(self, size: int, what: str) -> slice:
        """Return the slice of `size` rows, columns or heads that this rank has. Raises Unusable if
        the number of ranks does not divide `size`.
        """
        if size % self.count:
            raise Unusable(f"cannot be split among {self.count} ranks: its {what} are {size}")
        each = size // self.count
        return slice(self.rank * each, (self.rank + 1) * each)


class RankSum(nn.Module):
    """Adds up the partial sums [..., size] of all ranks, in their order, in float32."""

    def forward(self, partial: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all ranks, in the dtype of this rank's tensor."""
        total, *others = (each.float() for each in gathered(partial))
        for other in others:
            total = total + other
        return total.to(partial.dtype)


def gathered(part: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks, in their order; all have the shape of `part`."""
    parts = [torch.empty_like(part) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, part.contiguous())
    return parts


def check_split(config: PreTrainedConfig, count: int) -> None:
    """Raise Unusable if a network of this configuration cannot be split among `count` ranks. The
    check allocates no memory for weights.
    """
    if hasattr(config, "quantization_config"):
        raise Unusable("cannot be split among ranks: its weights are quantised")
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    split(network, Shard(0, count))


@torch.inference_mode()
def split(network: PreTrainedModel, shard: Shard) -> None:
    """Reduce a network to the part of one rank. Raises Unusable if the network cannot be split. The
    message of an Unusable error continues a sentence that begins with the name of the network's
    class.
    """
    config = network.config.get_text_config()
    for what in ("num_attention_heads", "num_key_value_heads"):
        shard.part(getattr(config, what, None) or config.num_attention_heads, what)
    styles = {name: style for name, style in _styles(network) if style not in WHOLE}
    if not styles:
        raise Unusable("cannot be split among ranks: transformers has no plan for its layers")
    for name, style in styles.items():
        layer = _found(network, name)
        stored = isinstance(layer, nn.Linear) and isinstance(layer.weight, GroupedWeight)
        if style not in (OUTPUTS, INPUTS) or not isinstance(layer, nn.Linear) or stored:
            raise Unusable(f"cannot be split among ranks: no rule can split {name} ({style})")
        _keep(layer, shard, style == OUTPUTS)


def _keep(layer: nn.Linear, shard: Shard, outputs: bool) -> None:
    """Reduce a layer to this rank's part. If `outputs`, the layer's outputs are split among the
    ranks, otherwise its inputs. If the inputs are split, only rank 0 keeps the bias, so that it is
    added only once.
    """
    weight, bias = layer.weight, layer.bias
    part = shard.part(weight.shape[not outputs], "outputs" if outputs else "inputs")
    kept = weight[part] if outputs else weight[:, part]
    layer.weight = nn.Parameter(kept.clone(), requires_grad=False)
    layer.out_features, layer.in_features = layer.weight.shape
    if bias is not None and outputs:
        layer.bias = nn.Parameter(bias[part].clone(), requires_grad=False)
    elif shard.rank:
        layer.register_parameter("bias", None)


def join(network: PreTrainedModel) -> list[str]:
    """Make a network that was split add up the partial sums of all ranks. Returns the names of the
    layers whose outputs are summed. Layers may have been replaced, or absorbed by their parent
    modules, after the split.
    """
    names = {_held(network, name) for name, style in _styles(network) if style == INPUTS}
    for name in names:
        network.set_submodule(name, nn.Sequential(network.get_submodule(name), RankSum()))
    return sorted(names)


@contextmanager
def joined(network: PreTrainedModel) -> Iterator[None]:
    """Inside this context, make a network that was split add up the partial sums of all ranks."""
    names = join(network)
    try:
        yield
    finally:
        for name in names:
            network.set_submodule(name, network.get_submodule(f"{name}.0"))


@contextmanager
def in_turn(shard: Shard) -> Iterator[None]:
    """Let the ranks enter this context one after the other, so that memory never holds two complete
    networks.
    """
    for _ in range(shard.rank):
        distributed.barrier()
    yield
    for _ in range(shard.count - shard.rank):
        distributed.barrier()


def _held(network: nn.Module, name: str) -> str:
    """Return the name of a layer, or of the module that has absorbed it."""
    while _found(network, name) is None:
        name = name.rpartition(".")[0]
    return name


def _found(network: nn.Module, name: str) -> nn.Module | None:
    """Return the layer of this name, or None if the network has none."""
    try:
        return network.get_submodule(name)
    except AttributeError:
        return None


def _styles(network: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """Yield the name of each layer in transformers' plan for the class, and how the plan splits the
    layer.
    """
    layers = range(network.config.get_text_config().num_hidden_layers)
    for name, style in (network.tp_plan or {}).items():
        if "*" in name:
            yield from ((name.replace("*", str(layer)), style) for layer in layers)
        else:
            yield name, style
