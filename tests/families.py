"""Tiny random models of several architectures, with logits spread enough to tell them apart."""

from __future__ import annotations

import torch
import transformers as tf
from transformers import PreTrainedModel

VOCABULARY = 4096
LLAMA = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
}
GPT2 = {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 256}
NEOX = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
ENDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}

CONFIGS = {
    "gpt2": lambda: tf.GPT2Config(**GPT2, **ENDS),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**NEOX, **ENDS),
    "llama": lambda: tf.LlamaConfig(**LLAMA, **ENDS),
    "qwen2": lambda: tf.Qwen2Config(**LLAMA, **ENDS),
    "qwen2_window": lambda: tf.Qwen2Config(
        **LLAMA, **ENDS, use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "gptj": lambda: tf.GPTJConfig(**GPT2, **ENDS, rotary_dim=8),
    "bloom": lambda: tf.BloomConfig(n_layer=2, hidden_size=64, n_head=4, **ENDS),
    "gemma2": lambda: tf.Gemma2Config(**LLAMA, **ENDS, head_dim=16),
    "llama_dynamic": lambda: tf.LlamaConfig(
        **LLAMA,
        **ENDS,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    ),
}
SERVED = ("gpt2", "gpt_neox", "llama", "qwen2")
REFUSED = ("gptj", "bloom", "gemma2", "llama_dynamic")


def build(family: str, seed: int) -> PreTrainedModel:
    """A random model; its matrices are scaled up so that differences would show."""
    torch.manual_seed(seed)
    model = tf.AutoModelForCausalLM.from_config(CONFIGS[family]())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    return model.eval()
