"""Load a GGUF file as a Hugging Face network. `transformers` maps the names of the file's tensors
to the network's weights, and weights of 8 or 4 bits stay quantised where there are kernels for
them.

Tensors are read one at a time. A weight that is made of several tensors is added to the network as
soon as the last of them is read, so the tensors in memory are never larger than the network. The
message of an Unusable error continues a sentence that begins with the name of the file.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    get_tensor_name_map,
)
from gguf.quants import dequantize
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from tandem.engine.formats.blocks import READERS
from tandem.engine.forward.grouped_weight import GroupedWeight, StoredGroups
from tandem.protos.errors import Unusable
from tandem.protos.gguf import Head, StoredTensor

ROPE = "rope_freqs.weight"  # the tensor with the divisors of the rotary frequencies
# number of weights per block, by type
BLOCKS = {kind.name: size for kind, (size, _) in GGML_QUANT_SIZES.items()}
# bytes of a block, by type
BYTES = {kind.name: size for kind, (_, size) in GGML_QUANT_SIZES.items()}


def stored_as(head: Head) -> str:
    """Return the name of the type in which most weights of a file are stored, e.g. `q8_0`."""
    sizes = Counter[int]()
    for tensor in head.tensors:
        sizes[tensor.kind] += tensor.numbers
    return GGMLQuantizationType(sizes.most_common(1)[0][0]).name.lower()


def read(
    file: Path, head: Head, config: PreTrainedConfig, dtype: torch.dtype, grouped: bool
) -> tuple[PreTrainedModel, list[str]]:
    """Load the network of a file. Returns the network and the names of the weights that the file
    lacks. If `grouped`, weights of linear layers and embeddings stay quantised if there is a reader
    for their type. All other weights are converted to `dtype`. Raises Unusable.
    """
    with torch.device("meta"):
        network: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    _compute_buffers(network)
    reading = _Reading(file, head.metadata["general.architecture"], network, dtype, grouped)
    for tensor in head.tensors:
        reading.take(tensor)
    reading.finish()
    network.tie_weights()
    missing = [name for name, weight in network.named_parameters() if weight.is_meta]
    return network.eval().requires_grad_(False), missing


class _Reading:
    """Reads one file: fills in the weights of a network tensor by tensor."""

    def __init__(
        self, file: Path, kind: str, network: PreTrainedModel, dtype: torch.dtype, grouped: bool
    ) -> None:
        self._file = file
        self._network = network
        self._dtype = dtype
        self._grouped = grouped
        config = network.config.get_text_config()
        processor: Any = TENSOR_PROCESSORS.get(kind, TensorProcessor)
        self._processor = processor(config=config.to_dict())
        self._names = _names(kind, network, config.num_hidden_layers, self._processor)
        # weights made of several tensors, not all of which were read
        self._joined: dict[str, Any] = {"tensors": {}}
        self._came = set[str]()  # names of the tensors that were read as parts of joined weights

    def take(self, tensor: StoredTensor) -> None:
        """Read a tensor of the file and store it in the network. Raises Unusable."""
        if tensor.name == ROPE:
            return self._stretch(torch.from_numpy(self._numbers(tensor)))
        name = self._names.get(tensor.name)
        if name and self._stays(tensor, name):
            return self._put(name, self._weight(tensor))
        numbers, kept = self._processed(tensor, self._numbers(tensor), self._joined)
        if kept is None:
            return self._join(tensor.name)
        if kept not in self._names:
            raise Unusable(f"has an unknown tensor, {tensor.name}")
        return self._put(self._names[kept], torch.from_numpy(np.ascontiguousarray(numbers)))

    def finish(self) -> None:
        """Raise Unusable if the file has only some of the tensors that a weight is made of."""
        for name in self._joined["tensors"]:
            lacking = min(self._parts(name) - self._came)
            raise Unusable(f"lacks {lacking}, a part of {name}: get the whole file")

    def _join(self, part: str) -> None:
        """Note that the tensor `part` was read. If all tensors of a weight have been read, store
        the weight in the network.
        """
        self._came |= {part, part.removesuffix(".weight")}  # transformers may omit ".weight"
        for name in [each for each in self._joined["tensors"] if self._parts(each) <= self._came]:
            self._put(name, self._joined["tensors"].pop(name))

    def _parts(self, name: str) -> set[str]:
        """Return the names of the file's tensors from which a weight of the network is made."""
        return {stored for stored, own in self._names.items() if own == name}

    def _stays(self, tensor: StoredTensor, name: str) -> bool:
        """Tell whether a tensor is kept in its quantised form. A quantised tensor is kept if it is
        a matrix of a linear layer or an embedding, and its type has a reader. `transformers`
        changes only the order of the outputs in a tensor that is kept.
        """
        kind = GGMLQuantizationType(tensor.kind).name
        if not self._grouped or kind not in READERS or len(tensor.shape) != 2:
            return False
        layer = self._network.get_submodule(name.rpartition(".")[0])
        return isinstance(layer, nn.Linear | nn.Embedding)

    def _weight(self, tensor: StoredTensor) -> torch.Tensor:
        """Return a weight in its stored blocks, with its outputs in the order that `transformers`
        expects.
        """
        outputs, inputs = tensor.shape
        kind = GGMLQuantizationType(tensor.kind).name
        order = np.arange(outputs)[:, None]
        # there are no tensors to join
        reordered = self._processed(tensor, order, {"tensors": {}})[0]
        stored = torch.from_numpy(self._bytes(tensor)).view(outputs, -1)
        if not np.array_equal(reordered, order):
            stored = stored[torch.from_numpy(reordered[:, 0].copy())]
        blocks = stored.unflatten(1, (inputs // BLOCKS[kind], -1))
        return GroupedWeight([StoredGroups((blocks,), inputs, READERS[kind])], self._dtype)

    def _bytes(self, tensor: StoredTensor) -> np.ndarray[Any, Any]:
        """Read the bytes of a tensor. Raises Unusable if the file ends before the tensor does."""
        kind = GGMLQuantizationType(tensor.kind)
        size = tensor.numbers // BLOCKS[kind.name] * BYTES[kind.name]
        stored = np.fromfile(self._file, np.uint8, size, offset=tensor.offset)
        if len(stored) < size:
            raise Unusable("is cut off: get the whole file")
        return stored

    def _numbers(self, tensor: StoredTensor) -> np.ndarray[Any, Any]:
        """Read a tensor, and return its dequantised values in its shape."""
        kind = GGMLQuantizationType(tensor.kind)
        stored = self._bytes(tensor).reshape(*tensor.shape[:-1], -1)
        return dequantize(stored, kind).reshape(tensor.shape)

    def _processed(
        self, tensor: StoredTensor, numbers: np.ndarray[Any, Any], keep: dict[str, Any]
    ) -> Any:
        """Let `transformers` convert the `numbers` of a tensor. Returns the converted numbers and
        their name. If the numbers are only a part of a joined weight, `transformers` stores them in
        `keep`, and the name is None.
        """
        made = self._processor.process(
            weights=numbers,
            name=tensor.name,
            tensor_key_mapping=self._names,
            parsed_parameters=keep,
        )
        return made.weights, made.name

    def _put(self, name: str, weight: torch.Tensor) -> None:
        """Set a weight of the network. Raises Unusable if the network expects another shape."""
        owner, _, leaf = name.rpartition(".")
        layer = self._network.get_submodule(owner)
        present = getattr(layer, leaf)
        if present.shape != weight.shape:
            had, wants = list(weight.shape), list(present.shape)
            raise Unusable(f"has {name} in the shape {had}, but its network takes {wants}")
        if not isinstance(weight, GroupedWeight):
            weight = weight.to(present.dtype)
        setattr(layer, leaf, nn.Parameter(weight, requires_grad=False))

    def _stretch(self, factors: torch.Tensor) -> None:
        """Divide the rotary frequencies by `factors`. Raises Unusable if no layer has that many
        frequencies.
        """
        divided = False
        for layer in self._network.modules():
            for name in ("inv_freq", "original_inv_freq"):
                frequencies = getattr(layer, name, None)
                if isinstance(frequencies, torch.Tensor) and frequencies.shape == factors.shape:
                    setattr(layer, name, frequencies / factors)
                    divided = True
        if not divided:
            factored = f"has factors for {len(factors)} rotary frequencies"
            raise Unusable(f"{factored}, but no layer has that many")


def _names(kind: str, network: PreTrainedModel, layers: int, processor: Any) -> dict[str, str]:
    """Map the names of tensors in the file to the names of weights in the network."""
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == kind)
    known, found = get_tensor_name_map(architecture, layers), dict[str, str]()
    for name in network.state_dict():
        stem, end = processor.preprocess_name(name), ""
        if stem.endswith((".weight", ".bias")):
            stem, _, end = stem.rpartition(".")
            end = f".{end}"
        stored = known.get_name(stem) or known.get_name(stem.partition(".")[2])
        if stored:
            found[stored + end] = name
        else:
            processor.perform_fallback_tensor_mapping(found, end, "", stem + end)
    return found


def _compute_buffers(network: PreTrainedModel) -> None:
    """Compute the buffers that files do not contain, e.g. rotary frequencies, for a network on the
    device `meta`.
    """
    for layer in network.modules():
        for name in layer._non_persistent_buffers_set:
            buffer = layer._buffers[name]
            if buffer is not None:
                layer._buffers[name] = torch.empty_like(buffer, device="cpu")
        if layer._non_persistent_buffers_set:
            network._init_weights(layer)
