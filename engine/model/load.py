"""A Hugging Face causal language model as the engine needs it: loaded, checked, refused when it
cannot work.

Loads safetensors and GGUF files, and runs no code from the model directory. Raises Unusable with a
line that names the model and what to do instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from logging import CRITICAL
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from tandem.engine.cache.pool import LayerGeometry, position_bytes
from tandem.engine.forward.cpu import panels
from tandem.engine.forward.cpu.kernels import kernels
from tandem.engine.forward.grouped_weight import GroupedWeight
from tandem.engine.model import gguf
from tandem.engine.model.gguf_config import config_of as gguf_config_of
from tandem.engine.model.grouping import round_linears
from tandem.engine.model.linears import (
    FULL,
    INT8,
    kernels_of,
    linear_class,
    recording_inputs,
    replace_layers,
)
from tandem.engine.model.probe import install_attention, refuse_class
from tandem.engine.model.quantised import SETTING, dequantise, unify_dtype
from tandem.engine.model.reference import ReferenceLogits, reference_logits
from tandem.engine.parallel.shards import Shard, in_turn, join, joined, split
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id
from tandem.protos.gguf import head as gguf_head
from tandem.protos.gguf import is_gguf

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES_OF_FILES = ("f32", "bf16", "f16")
AUTO = "auto"  # the checkpoint's own
SERVED_MODELS = "choose one that is served, e.g. Llama, Qwen, Mistral, Gemma, Phi or GPT-2"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True, slots=True)
class HFModel:
    """A loaded model whose linear layers and attention are ours; `reference`: what it computed when
    they were not.
    """

    network: PreTrainedModel
    reference: ReferenceLogits
    layers: tuple[LayerGeometry, ...]
    vocab_size: int
    token_count: int  # ids that the tokenizer knows; the rest of the vocabulary is padding
    context_length: int
    end_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    weights: str = FULL
    quantised: str | None = None  # how weights are stored in the files, if not as numbers
    grouped: bool = False  # whether they stay so
    ranks: int = 1  # among which it is split

    @property
    def numbers(self) -> str:
        """The dtype, as status and log report it."""
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
        """The network's class."""
        return type(self.network).__name__

    @property
    def position_bytes(self) -> int:
        """Bytes that one cached token takes."""
        return position_bytes(self.layers, self.dtype)

    @property
    def kernels(self) -> str:
        """What multiplies its weights."""
        return kernels_of(self.network)


def load(
    model: Path,
    dtype: str | None = None,
    device: str = "cpu",
    weights: str = FULL,
    shard: Shard | None = None,
) -> HFModel:
    """Load a model directory or a GGUF file, or a part of it, while other ranks load theirs; raises
    Unusable.
    """
    head = gguf_head(model) if is_gguf(model) else None
    if not head and not (model / "config.json").is_file():
        raise Unusable(f"{model} is not a model directory: it has no config.json")
    tokens = tokens_by_id(model)
    with _loading(model, device):
        config = gguf_config_of(model, head) if head else AutoConfig.from_pretrained(model, **LOCAL)
    with _judging(model, config):
        _refuse_config(config)
    wanted = _dtype(dtype, config, device)
    grouped = panels.why_unsupported(wanted, torch.device(device)) is None
    with _judging(model, config):
        quantised = gguf.stored_as(head) if head else dequantise(config, model, grouped)
    with _loading(model, device):
        if head:
            network, missing = gguf.read(model, head, config, wanted, grouped)
        else:
            network, missing = _read(model, config, wanted, torch.device(device), shard)
    if shard and (head or weights != FULL):
        raise Unusable(f"{model}: only unquantised model directories can be split among ranks")
    if missing:
        lacking = f"its files lack {len(missing)} weights of {type(network).__name__}"
        raise Unusable(f"{model} cannot be served: {lacking}, e.g. {missing[0]}; get all files")
    stays = any(isinstance(each, GroupedWeight) for each in network.parameters())
    kind = linear_class(wanted, network.device, weights)
    with _judging(model, config), recording_inputs(network) as groups:
        found = install_attention(network, _context_length(config))
    if weights == INT8:
        round_linears(network)
    with _judging(model, config), joined(network) if shard else nullcontext():
        reference = reference_logits(network, found, wanted, model)
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
        end_token_ids=head.end_token_ids if head else _end_token_ids(network),
        device=torch.device(device),
        dtype=wanted,
        weights=weights,
        quantised=quantised if quantised not in DTYPES_OF_FILES else None,
        grouped=stays,
        ranks=shard.count if shard else 1,
    )


def _read(
    folder: Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    shard: Shard | None,
) -> tuple[PreTrainedModel, list[str]]:
    """The network, and names of weights that the files do not have: they would be random. Weights
    that are of this dtype in the files go from there to the device, through no memory of ours. One
    rank after the other keeps its part.
    """
    logging.disable_progress_bar()  # standard error is for lines
    logging.set_verbosity(CRITICAL)  # and what is wrong is raised
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
    return network.eval().requires_grad_(False).to(device), sorted(report["missing_keys"])


@contextmanager
def _loading(folder: Path, device: str) -> Iterator[None]:
    """Whatever the loaders underneath raise becomes a line."""
    try:
        yield
    except Unusable as error:
        raise Unusable(f"{folder} {error}") from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if "trust_remote_code" in str(error):
            reason = f"it needs code from its directory, which is never run; {SERVED_MODELS}"
        raise Unusable(f"{folder} cannot be loaded on {device}: {reason}") from error


@contextmanager
def _judging(folder: Path, config: PreTrainedConfig) -> Iterator[None]:
    """Put the names of directory and class before what is wrong with them."""
    try:
        yield
    except Unusable as error:
        name = (config.architectures or [type(config).__name__])[0]
        raise Unusable(f"{folder} cannot be served: {name} {error}; {SERVED_MODELS}") from error


def _refuse_config(config: PreTrainedConfig) -> None:
    """Raise Unusable for what can be known before the weights are read."""
    if config.is_encoder_decoder:
        raise Unusable("is an encoder-decoder")
    if getattr(config.get_text_config(), "attn_temperature_tuning", False):  # Llama 4
        raise Unusable("scales attention by a token's place in the batch, not in its text")
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not isinstance(kind, type):
        raise Unusable("is not a causal language model")
    refuse_class(kind)


def default_dtype(saved: str, device: str) -> str:
    """What a model is loaded in unless a dtype is set: what it was `saved` in. On a CPU only
    bfloat16 is kept, where there are kernels with instructions for it. What lacks them, float16 on
    every CPU, is converted in each product and gains no speed; and float16 overflows where a
    network was not trained in it.
    """
    if not device.startswith("cpu"):
        return saved
    build = kernels()
    native = build is not None and build.pairs
    return saved if saved == "bfloat16" and native else "float32"


def _dtype(name: str | None, config: PreTrainedConfig, device: str) -> torch.dtype:
    own = config.dtype or config.get_text_config().dtype or torch.float32
    saved = str(own).removeprefix("torch.")
    if name is None:
        name = default_dtype(saved, device)
    elif name == AUTO:
        name = saved
    if name not in DTYPES:
        raise Unusable(f"dtype {name!r} is not one of {', '.join([AUTO, *DTYPES])}")
    return DTYPES[name]


def _context_length(config: PreTrainedConfig) -> int:
    """How far the positions reach, and the same for every session: rotary positions that stretch
    with the longest text of a call are the original ones up to the original length.
    """
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    limits = [int(length or 2048)]
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in [ropes] if "rope_type" in ropes else ropes.values():  # one, or one per layer type
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limits.append(rope["original_max_position_embeddings"])
    return min(limits)


def _end_token_ids(network: PreTrainedModel) -> tuple[int, ...]:
    given = network.generation_config.eos_token_id if network.generation_config else None
    if given is None:
        given = getattr(network.config.get_text_config(), "eos_token_id", None)
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (int(given),)
