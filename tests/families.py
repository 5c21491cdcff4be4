"""Tiny random models of many architectures, with logits far enough apart to distinguish the
models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf
from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY = 4096
CONTEXT = 256
WINDOW = 16
ENDS = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
PLAIN = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT,
    **ENDS,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}  # several query heads share a key head
SIZED = {**GROUPED, "head_dim": 16}
GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": CONTEXT, **ENDS}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
# SIMD width in numbers; PyTorch rounds a remainder differently, but real sizes have no remainder
VECTOR = 32
ROUTED = {
    "n_routed_experts": VECTOR,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SHORT = CONTEXT // 2
PAIRS = 8  # rotary dimensions of a head of 16


def rope(kind: str, **options: Any) -> dict[str, Any]:
    """Rotary positions."""
    return {"rope_type": kind, "rope_theta": 10000.0, **options}


def stretched(kind: str, **options: Any) -> dict[str, Any]:
    """Rotary positions for half the context, scaled to the whole context."""
    return rope(kind, original_max_position_embeddings=SHORT, **options)


LLAMA3 = stretched("llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0)
LONGROPE = stretched(
    "longrope", short_factor=[1.0] * PAIRS, long_factor=[1.0 + pair for pair in range(PAIRS)]
)
ALTERNATING = ["sliding_attention", "full_attention"]

GEMMA3 = {
    **SIZED,
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ALTERNATING * 2,
}
SHARING = {  # the last layers use the keys of earlier layers
    **GEMMA3,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": VECTOR,
}
LLAMA4 = {**SIZED, **EXPERTS, "num_hidden_layers": 4, "intermediate_size_mlp": 128}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: tf.GPT2Config(**GPT2),
    "gpt_neox": lambda: tf.GPTNeoXConfig(**PLAIN),
    "llama": lambda: tf.LlamaConfig(**GROUPED),
    "qwen2": lambda: tf.Qwen2Config(**GROUPED),
    "apertus": lambda: tf.ApertusConfig(**GROUPED),
    "biogpt": lambda: tf.BioGptConfig(**PLAIN),
    "cohere": lambda: tf.CohereConfig(**GROUPED, logit_scale=1.0),
    "cohere2": lambda: tf.Cohere2Config(**GROUPED, logit_scale=1.0, sliding_window=WINDOW),
    "deepseek_v3": lambda: tf.DeepseekV3Config(**PLAIN, **LATENT, **ROUTED, num_key_value_heads=4),
    "ernie4_5": lambda: tf.Ernie4_5Config(**GROUPED),
    "exaone4": lambda: tf.Exaone4Config(
        **{**GROUPED, "num_hidden_layers": 4}, sliding_window=WINDOW
    ),
    "gemma": lambda: tf.GemmaConfig(**SIZED),
    "gemma2": lambda: tf.Gemma2Config(
        **SIZED, query_pre_attn_scalar=16, attn_logit_softcapping=2.0, sliding_window=WINDOW
    ),
    "gemma3": lambda: tf.Gemma3Config(text_config=GEMMA3, vision_config=VISION),
    "gemma3_text": lambda: tf.Gemma3TextConfig(**GEMMA3),
    "gemma3n_text": lambda: tf.Gemma3nTextConfig(
        **SHARING, laurel_rank=8, activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0]
    ),
    "gemma4_text": lambda: tf.Gemma4TextConfig(**SHARING, global_head_dim=32),
    "glm4": lambda: tf.Glm4Config(**SIZED),
    "glm4_moe": lambda: tf.Glm4MoeConfig(**SIZED, **ROUTED, n_shared_experts=1),
    "gpt_bigcode": lambda: tf.GPTBigCodeConfig(**GPT2),
    "gpt_oss": lambda: tf.GptOssConfig(
        **SIZED, **EXPERTS, sliding_window=WINDOW, rope_parameters=rope("default")
    ),
    "granite": lambda: tf.GraniteConfig(**GROUPED),
    "granitemoe": lambda: tf.GraniteMoeConfig(**GROUPED, **EXPERTS),
    "helium": lambda: tf.HeliumConfig(**SIZED),
    "hunyuan": lambda: tf.HunYuanDenseV1Config(**SIZED),
    "llama3": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=LLAMA3),
    "llama_dynamic": lambda: tf.LlamaConfig(**GROUPED, rope_parameters=rope("dynamic", factor=2.0)),
    "llama_wide": lambda: tf.LlamaConfig(
        **{**GROUPED, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
    ),
    "llama4_text": lambda: tf.Llama4TextConfig(
        **LLAMA4, attn_temperature_tuning=False, attention_chunk_size=SHORT
    ),
    "ministral": lambda: tf.MinistralConfig(**SIZED, sliding_window=WINDOW),
    "mistral_wide": lambda: tf.MistralConfig(**GROUPED, sliding_window=2 * CONTEXT),
    "mistral_window": lambda: tf.MistralConfig(**GROUPED, sliding_window=WINDOW),
    "mixtral": lambda: tf.MixtralConfig(**GROUPED, **EXPERTS),
    "nemotron": lambda: tf.NemotronConfig(**GROUPED),
    "olmo2": lambda: tf.Olmo2Config(**GROUPED),
    "olmo3": lambda: tf.Olmo3Config(**{**GROUPED, "num_hidden_layers": 4}, sliding_window=WINDOW),
    "olmoe": lambda: tf.OlmoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2),
    "opt": lambda: tf.OPTConfig(**PLAIN, ffn_dim=128, word_embed_proj_dim=64),
    "phi": lambda: tf.PhiConfig(**PLAIN),
    "phi3": lambda: tf.Phi3Config(**GROUPED),
    "phi3_longrope": lambda: tf.Phi3Config(
        **GROUPED, original_max_position_embeddings=SHORT, rope_parameters=LONGROPE
    ),
    "phimoe": lambda: tf.PhimoeConfig(**GROUPED, **EXPERTS, sliding_window=SHORT),
    "qwen2_moe": lambda: tf.Qwen2MoeConfig(
        **GROUPED, **QWEN_EXPERTS, shared_expert_intermediate_size=32
    ),
    "qwen2_window": lambda: tf.Qwen2Config(
        **GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": lambda: tf.Qwen3Config(**SIZED),
    "qwen3_moe": lambda: tf.Qwen3MoeConfig(**SIZED, **QWEN_EXPERTS),
    "qwen3_yarn": lambda: tf.Qwen3Config(**SIZED, rope_parameters=stretched("yarn", factor=2.0)),
    "seed_oss": lambda: tf.SeedOssConfig(**SIZED),
    "smollm3": lambda: tf.SmolLM3Config(**{**GROUPED, "num_hidden_layers": 4}),
    "stablelm": lambda: tf.StableLmConfig(**PLAIN, num_key_value_heads=4),
    "starcoder2": lambda: tf.Starcoder2Config(**GROUPED),
}
ARCHITECTURES = tuple(CONFIGS)
SERVED = ("gpt2", "gpt_neox", "llama", "qwen2")  # families on which costly tests run
CAPPED = {"phi3_longrope": SHORT, "llama4_text": SHORT, "phimoe": SHORT}  # contexts

# Each of these families is refused with a message that contains the value.
CONFIGS |= {
    "bart": lambda: tf.BartConfig(
        d_model=64, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64
    ),
    "bert": lambda: tf.BertConfig(**PLAIN),
    "bloom": lambda: tf.BloomConfig(n_layer=2, hidden_size=64, n_head=4, **ENDS),
    "deepseek_v32": lambda: tf.DeepseekV32Config(
        **PLAIN, **LATENT, **ROUTED, index_n_heads=2, index_head_dim=16
    ),
    "diffllama": lambda: tf.DiffLlamaConfig(**GROUPED),
    "lfm2": lambda: tf.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"]),
    "llama4": lambda: tf.Llama4TextConfig(**LLAMA4),
    "mamba": lambda: tf.MambaConfig(num_hidden_layers=2, hidden_size=64, state_size=8, **ENDS),
}
REFUSED = {
    "bart": "BartForConditionalGeneration is an encoder-decoder",
    "bert": "BertLMHeadModel is not causal",
    "bloom": "BloomForCausalLM does not attend through transformers' AttentionInterface",
    "deepseek_v32": "DeepseekV32ForCausalLM passes the attention option 'indices'",
    "diffllama": "DiffLlamaForCausalLM attends more than once in a layer",
    "lfm2": "Lfm2ForCausalLM has attention in 1 of its 2 layers only",
    "llama4": "Llama4ForCausalLM scales attention by a token's position in the batch",
    "mamba": "MambaForCausalLM keeps a recurrent state",
}


def build(family: str, seed: int) -> PreTrainedModel:
    """Return a random model whose matrices are scaled up, so that differences show in the
    logits.
    """
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    kind = tf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else tf.AutoModelForCausalLM
    model = kind.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    return model.eval()
