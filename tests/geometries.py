"""Well-known models without their weights: the attention settings of their configurations, in the
true sizes or with all other sizes tiny.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from transformers import AutoModelForCausalLM, PreTrainedConfig

from tandem import models
from tandem.engine.cache.pool import LayerGeometry

TINY = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 4096, "pad_token_id": None}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SIZES: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
    },
    "Llama-3.2-1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_parameters": LLAMA3,
    },
    "Gemma-3-1B": {
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "vocab_size": 262144,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
    },
    "Qwen2.5-1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "vocab_size": 151936,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
    "Phi-4-mini": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "vocab_size": 200064,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
    },
}
KINDS: dict[str, Callable[..., PreTrainedConfig]] = {
    "Qwen3-0.6B": tf.Qwen3Config,
    "Llama-3.2-1B": tf.LlamaConfig,
    "Gemma-3-1B": tf.Gemma3TextConfig,
    "Qwen2.5-1.5B": tf.Qwen2Config,
    "Phi-4-mini": tf.Phi3Config,
}
MODELS = tuple(SIZES)


def layers_of(name: str) -> list[LayerGeometry]:
    """Return what all layers of a model store per token."""
    sizes = SIZES[name]
    head = sizes["head_dim"]
    return [LayerGeometry(sizes["num_key_value_heads"], head, head)] * sizes["num_hidden_layers"]


def save_random(name: str, folder: Path, dtype: torch.dtype, **other: Any) -> Path:
    """Write a model directory with random weights and the embedded tokenizer; `other` replaces
    sizes.
    """
    torch.manual_seed(0)
    config = KINDS[name](**{**SIZES[name], "tie_word_embeddings": True, **ENDS, **other})
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models.TARGET / file, folder)
    return folder
