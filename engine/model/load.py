"""Load a Hugging Face causal language model for the engine, check it, and refuse it if it cannot be
served.

Loads safetensors and GGUF files, and never runs code from the model directory. The message of an
Unusable error names the model and says what to do instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from tandem.engine.cache.pool import LayerGeometry, position_bytes
from tandem.engine.formats import gguf
from tandem.engine.formats.quantised import SETTING, dequantise, unify_dtype
from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.model.configuration import (
    LOCAL,
    configuration,
    end_token_ids,
    judging,
    loading,
    longest_text,
)
from tandem.engine.model.dtypes import dtype_of
from tandem.engine.model.grouping import round_linears
from tandem.engine.model.linears import (
    FULL,
    INT8,
    keeps_codes,
    kernels_of,
    linear_factory,
    recording_inputs,
    replace_layers,
)
from tandem.engine.model.probe import install_attention
from tandem.engine.model.reference import ReferenceLogits, reference_logits
from tandem.engine.parallel.shards import Shard, in_turn, join, joined, split
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id
from tandem.protos.gguf import head as gguf_head
from tandem.protos.gguf import is_gguf

DTYPES_OF_FILES = ("f32", "bf16", "f16")


@dataclass(frozen=True, slots=True)
class HFModel:
    """A loaded model whose linear layers and attention are those of this engine. `reference` holds
    the logits that the network computed before its own layers were replaced.
    """

    network: PreTrainedModel
    reference: ReferenceLogits
    layers: tuple[LayerGeometry, ...]
    vocab_size: int
    # number of ids that the tokenizer knows; the rest of the vocabulary is padding
    token_count: int
    context_length: int
    end_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    weights: str = FULL
    quantised: str | None = None  # the quantised type of the weights in the files, or None
    grouped: bool = False  # whether the weights stay quantised, in groups
    ranks: int = 1  # number of processes that the model is split among

    @property
    def numbers(self) -> str:
        """The dtype and the form of the weights, for the status and the log."""
        name = str(self.dtype).removeprefix("torch.")
        if self.ranks > 1:
            return f"{name}, {self.ranks} ranks"
        if self.weights == INT8:
            return f"{name}, weights in int8"
        if not self.quantised:
            return name
        return f"{name}, {'weights in' if self.grouped else 'dequantised from'} {self.quantised}"

    @property
    def kind(self) -> str:
        """The name of the network's class."""
        return type(self.network).__name__

    @property
    def position_bytes(self) -> int:
        """The bytes that one token takes in the KV cache."""
        return position_bytes(self.layers, self.dtype)

    @property
    def kernels(self) -> str:
        """The names of the kernels that multiply the model's weights."""
        return kernels_of(self.network)


def load(
    model: Path,
    dtype: str | None = None,
    device: str = "cpu",
    weights: str = FULL,
    shard: Shard | None = None,
) -> HFModel:
    """Load a model directory or a GGUF file, or one rank's part of the model. Raises Unusable."""
    head = gguf_head(model) if is_gguf(model) else None
    config, tokens = configuration(model, head, device), tokens_by_id(model)
    chosen = dtype_of(dtype, config, device)
    kind = linear_factory(chosen, torch.device(device), weights)
    grouped = keeps_codes(kind)
    with judging(model, config):
        quantised = gguf.stored_as(head) if head else dequantise(config, model, grouped)
    with loading(model, device):
        if head:
            network, missing = gguf.read(model, head, config, chosen, grouped)
        else:
            network, missing = _read(model, config, chosen, shard)
    _refuse_missing(model, network, missing)
    with loading(model, device):
        network.to(torch.device(device))  # type: ignore[arg-type]  # its wrapper has no types
    stays = any(isinstance(each, GroupedWeight) for each in network.parameters())
    with judging(model, config), recording_inputs(network) as groups:
        found = install_attention(network, longest_text(config))
    if weights == INT8:
        round_linears(network)
    with judging(model, config), joined(network) if shard else nullcontext():
        reference = reference_logits(network, found, chosen, model)
    if kind:
        replace_layers(network, groups, kind)
    if shard:
        join(network)
    return HFModel(
        network=network,
        reference=reference,
        layers=found.layers,
        vocab_size=found.vocab_size,
        token_count=min(max(tokens) + 1, found.vocab_size),
        context_length=found.context_length,
        end_token_ids=head.end_token_ids if head else end_token_ids(network),
        device=torch.device(device),
        dtype=chosen,
        weights=weights,
        quantised=quantised if quantised not in DTYPES_OF_FILES else None,
        grouped=stays,
        ranks=shard.count if shard else 1,
    )


def _read(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    shard: Shard | None = None,
) -> tuple[PreTrainedModel, list[str]]:
    """Load the network of a model directory. Returns the network and the names of the weights that
    its files lack. Weights that the files lack have random values. Weights that the files store in
    `dtype` are memory-mapped, so moving them to a device makes no copy in the process's memory.
    Ranks load one after the other, and each rank keeps only its `shard`.
    """
    logging.disable_progress_bar()  # standard error is for log lines
    logging.set_verbosity(CRITICAL)  # transformers should log nothing, because problems are raised
    with in_turn(shard) if shard else nullcontext():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            **LOCAL,
        )
        network, report = loaded
        if shard:
            split(network, shard)
    if hasattr(config, SETTING):
        unify_dtype(network, dtype)
    return network.eval().requires_grad_(False), sorted(report["missing_keys"])


def _refuse_missing(folder: Path, network: PreTrainedModel, missing: Sequence[str]) -> None:
    """Raise Unusable if the files of a model lack weights of its network."""
    if missing:
        lacking = f"its files lack {len(missing)} weights of {type(network).__name__}"
        raise Unusable(f"{folder} cannot be served: {lacking}, e.g. {missing[0]}; get all files")
