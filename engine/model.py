"""A Hugging Face causal language model as the engine needs it: loaded, checked, refused when it
cannot work.

Loads safetensors only and runs no code from the model directory. Raises Unusable with a line that
names the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.attention import NAME, Probe, stepping
from engine.kv import LayerGeometry
from protos.errors import Unusable
from protos.fingerprint import tokens_by_id

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model whose attention is ours."""

    network: PreTrainedModel
    layers: tuple[LayerGeometry, ...]
    vocab_size: int
    token_count: int  # ids that the tokenizer knows; the rest of the vocabulary is padding
    context_length: int
    end_token_ids: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype


def load(folder: Path, dtype: str = "float32", device: str = "cpu") -> Model:
    """Load a model directory; raises Unusable."""
    if not (folder / "config.json").is_file():
        raise Unusable(f"{folder} is not a model directory: it has no config.json")
    if dtype not in DTYPES:
        raise Unusable(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    tokens = tokens_by_id(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        network = network.eval().requires_grad_(False)
        network.to(torch.device(device))
    except Exception as error:  # the loaders underneath raise whatever they like
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise Unusable(f"{folder} cannot be loaded on {device}: {reason}") from error
    _refuse_rope(folder, config)
    layers = adopt(network)
    vocab_size = network.get_output_embeddings().weight.shape[0]
    return Model(
        network=network,
        layers=layers,
        vocab_size=vocab_size,
        token_count=min(max(tokens) + 1, vocab_size),
        context_length=_context_length(config),
        end_token_ids=_end_token_ids(network),
        device=torch.device(device),
        dtype=DTYPES[dtype],
    )


def adopt(network: PreTrainedModel) -> tuple[LayerGeometry, ...]:
    """Put our attention into a model and read off what each layer stores; raises Unusable if a
    layer goes around it.
    """
    kind = type(network).__name__
    network.set_attn_implementation(NAME)
    config = network.config.get_text_config()
    if config._attn_implementation != NAME:
        raise Unusable(
            f"{kind} cannot be served: it does not use transformers' attention interface"
        )
    probe = Probe()
    device = network.device
    ids = torch.zeros(1, 4, dtype=torch.long, device=device)
    with torch.inference_mode(), stepping(probe):
        network(
            input_ids=ids,
            position_ids=torch.arange(4, device=device)[None],
            attention_mask=None,
            use_cache=False,
        )
    expected = set(range(config.num_hidden_layers))
    if set(probe.layers) != expected:
        raise Unusable(
            f"{kind} cannot be served: only {len(probe.layers)} of {len(expected)} layers"
            " attend through the interface"
        )
    return tuple(probe.layers[layer] for layer in sorted(probe.layers))


def _refuse_rope(folder: Path, config: Any) -> None:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kind = rope.get("rope_type") if isinstance(rope, dict) else None
    if kind in BATCH_DEPENDENT_ROPE:
        raise Unusable(
            f"{folder} cannot be served: its {kind!r} rotary positions depend on the whole batch"
        )


def _context_length(config: Any) -> int:
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(length or 2048)


def _end_token_ids(network: PreTrainedModel) -> tuple[int, ...]:
    given = network.generation_config.eos_token_id if network.generation_config else None
    given = network.config.eos_token_id if given is None else given
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (int(given),)
