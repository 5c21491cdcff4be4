"""Read the configuration of a model, and judge from it whether the model can be served, before any
weights are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from tandem.engine.formats.gguf_config import config_of as gguf_config_of
from tandem.engine.model.probe import refuse_class
from tandem.protos.errors import Unusable
from tandem.protos.gguf import Head

SERVED_MODELS = "choose one that is served, e.g. Llama, Qwen, Mistral, Gemma, Phi or GPT-2"
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def configuration(model: Path, head: Head | None, device: str) -> PreTrainedConfig:
    """Return the configuration of a model directory, or of a GGUF file that has this `head`. Raises
    Unusable if the configuration cannot be read, or shows that the model cannot be served.
    """
    if not head and not (model / "config.json").is_file():
        raise Unusable(f"{model} is not a model directory: it has no config.json")
    with loading(model, device):
        config = gguf_config_of(model, head) if head else AutoConfig.from_pretrained(model, **LOCAL)
    with judging(model, config):
        _refuse(config)
    return config


def _refuse(config: PreTrainedConfig) -> None:
    """Raise Unusable if a configuration alone, without weights, shows that the model cannot be
    served.
    """
    if config.is_encoder_decoder:
        raise Unusable("is an encoder-decoder")
    if getattr(config.get_text_config(), "attn_temperature_tuning", False):  # Llama 4
        raise Unusable("scales attention by a token's position in the batch, not in its text")
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not isinstance(kind, type):
        raise Unusable("is not a causal language model")
    refuse_class(kind)


def longest_text(config: PreTrainedConfig) -> int:
    """Return the maximum text length, in tokens, up to which the position encodings of a text do
    not depend on the other texts of its batch. `longrope` stretches the rotary positions of a whole
    batch when its longest text exceeds the original length. The texts of a batch would then
    influence each other, so models with `longrope` are limited to the original length. If a
    configuration specifies no length, 2048 is assumed.
    """
    text = config.get_text_config()
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    limits = [int(length or 2048)]
    ropes = getattr(text, "rope_parameters", None) or {}
    # the parameters are either one setting, or one setting per layer type
    for rope in [ropes] if "rope_type" in ropes else ropes.values():
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limits.append(rope["original_max_position_embeddings"])
    return min(limits)


@contextmanager
def loading(folder: Path, device: str) -> Iterator[None]:
    """Inside this context, convert every exception to an Unusable error with a one-line reason."""
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
def judging(folder: Path, config: PreTrainedConfig) -> Iterator[None]:
    """Inside this context, prefix the message of an Unusable error with the names of the model
    directory and of the model class.
    """
    try:
        yield
    except Unusable as error:
        name = (config.architectures or [type(config).__name__])[0]
        raise Unusable(f"{folder} cannot be served: {name} {error}; {SERVED_MODELS}") from error


def end_token_ids(network: PreTrainedModel) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text. They are read from the network's generation
    configuration or, if it specifies none, from the network's configuration.
    """
    given = network.generation_config.eos_token_id if network.generation_config else None
    if given is None:
        given = getattr(network.config.get_text_config(), "eos_token_id", None)
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (int(given),)
