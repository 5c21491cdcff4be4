"""Read the configuration of a GGUF file: `transformers` converts its metadata, and this module
handles or refuses every key that `transformers` ignores.

If a key of the metadata were ignored, the model would generate wrong texts. The self-test would not
notice an ignored key, because it compares a network with itself. The message of an Unusable error
continues a sentence that begins with the name of the file.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

from tandem.protos.errors import Unusable
from tandem.protos.gguf import Head

HARMLESS = {
    "vocab_size",  # set by `config_of`
    "rope.scaling.type",  # `config_of` refuses any value except "none"
    "rope.scaling.original_context_length",  # this key matters only where positions are stretched
    "rope.scaling.finetuned",  # this key matters only where positions are stretched
    # the maximum length of a text; if the network has weights for positions, their shape must fit
    # it
    "context_length",
    "tensor_data_layout",  # each architecture has only one tensor layout
    # wrong values of the following keys are noticed, because the shapes of weights would not fit:
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
}
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
# llama.cpp also recognises the 27B models by these numbers of layers
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def config_of(file: Path, head: Head) -> PreTrainedConfig:
    """Return the configuration that `transformers` derives from a file's header, completed with the
    settings that `transformers` ignores. Raises the errors of `transformers`. Raises Unusable if
    the network would ignore a setting in the metadata.
    """
    known = head.metadata
    kind = known.get("general.architecture")
    stretched = known.get(f"{kind}.rope.scaling.type", "none")
    if stretched != "none":
        raise Unusable(f"uses RoPE scaling {stretched!r}, which is not supported in GGUF files")
    with TemporaryDirectory() as folder:
        light = Path(folder) / file.name
        light.write_bytes(head.light)
        os.truncate(light, file.stat().st_size)  # a sparse copy that is as long as the file
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, gguf_file=light.name, local_files_only=True
        )
    text = config.get_text_config()
    text.vocab_size = known.get(f"{kind}.vocab_size", len(known.get("tokenizer.ggml.tokens", ())))
    own = {
        key.removeprefix(f"{kind}."): value
        for key, value in known.items()
        if key.startswith(f"{kind}.")
    }
    _complete(text, str(kind), own)
    _compare(text, str(kind), own)
    return config


def _complete(text: Any, kind: str, own: dict[str, Any]) -> None:
    """Replace transformers' default values by the values in the file's `own` metadata."""
    rope, layers = _rope(text), LAYERS_OF_27B.get(kind)
    if rope and "rope.freq_base" in own:
        rope["rope_theta"] = own["rope.freq_base"]
    window = own.get("attention.sliding_window")
    if window and hasattr(text, "sliding_window") and not getattr(text, "layer_types", None):
        text.sliding_window = window  # all layers have the same window
    if layers:
        wide = text.num_hidden_layers == layers
        text.query_pre_attn_scalar = _width(text) if wide else text.head_dim


def _compare(text: Any, kind: str, own: dict[str, Any]) -> None:
    """Raise Unusable for the first key of the metadata that the configuration does not respect."""
    plain = kind.replace("-", "").replace("_", "")
    names: dict[str, Any] = {name.replace("_", ""): to for name, to in GGUF_CONFIG_MAPPING.items()}
    mapped = {key for key, name in names.get(plain, {}).items() if name}
    followed = _followed(text)
    for key, value in own.items():
        if key in followed:
            found = followed[key] or 0
            number = isinstance(value, int | float)
            if not (math.isclose(value, found, rel_tol=1e-6) if number else value == found):
                raise Unusable(f"has {kind}.{key} {value!r}, but the network has {found!r}")
        elif key not in mapped | HARMLESS:
            raise Unusable(f"has {kind}.{key} {value!r}, which is not supported in GGUF files")


def _followed(text: Any) -> dict[str, Any]:
    """Return the values that a network will actually use, by their keys in a file's metadata. The
    values None and 0 both mean that the network lacks the feature.
    """
    rope, size = _rope(text), getattr(text, "head_dim", None) or _width(text)
    norms = (getattr(text, name, None) for name in EPSILONS)
    epsilon = next((each for each in norms if each is not None), None)
    return {
        "rope.freq_base": rope.get("rope_theta"),
        "rope.freq_base_swa": _rope(text, "sliding_attention").get("rope_theta"),
        "rope.dimension_count": rope and int(size * rope.get("partial_rotary_factor", 1)),
        "rope.scaling.factor": 1,
        "rope.scale_linear": 1,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.sliding_window": getattr(text, "sliding_window", None),
        "attention.layer_norm_epsilon": epsilon,
        "attention.layer_norm_rms_epsilon": epsilon,
        "attn_logit_softcapping": getattr(text, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(text, "final_logit_softcapping", None),
        "use_parallel_residual": getattr(text, "use_parallel_residual", None),
        "expert_weights_norm": getattr(text, "norm_topk_prob", None),
    }


def _rope(text: Any, layers: str = "full_attention") -> dict[str, Any]:
    """Return the rotary parameters of a configuration. If the parameters differ between types of
    layers, return the parameters of the layer type `layers`.
    """
    ropes: dict[str, Any] = getattr(text, "rope_parameters", None) or {}
    found: dict[str, Any] = ropes.get(layers, ropes)
    return found


def _width(text: Any) -> int:
    """Return the width of an attention head for configurations that do not set it."""
    return int(text.hidden_size // (getattr(text, "num_attention_heads", None) or 1))
