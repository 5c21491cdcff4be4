"""GGUF files of other architectures: settings that `transformers` does not map are set, or the file
is refused by name. Tensors are joined where a network has them as one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    PreTrainedConfig,
    Qwen2MoeConfig,
)

from tandem.engine.formats import gguf as reading
from tandem.engine.formats.gguf_config import config_of
from tandem.models.gguf import write
from tandem.protos.errors import Unusable
from tandem.protos.gguf import head

TYPES = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}
USUAL: dict[str, Any] = {
    "vocab_size": 64,
    "context_length": 128,
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 4,
}
BASE: dict[str, Any] = {"rope.freq_base": 10000.0}


def described(file: Path, kind: str, metadata: dict[str, Any]) -> GGUFWriter:
    """Write the description of an architecture to a file."""
    writer = GGUFWriter(file, kind)
    for key, value in (USUAL | metadata).items():
        writer.add_key_value(f"{kind}.{key}", value, TYPES[type(value)])
    return writer


def config(folder: Path, kind: str, **metadata: Any) -> Any:
    """Return the configuration made from a file's metadata; two underscores in a name stand for a
    dot in the key.
    """
    file = folder / "model.gguf"
    named = {key.replace("__", "."): value for key, value in metadata.items()}
    write(described(file, kind, named))
    return config_of(file, head(file)).get_text_config()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3", "starcoder2", "stablelm"])
def test_the_base_of_rotary_positions_is_the_files(kind: str, tmp_path: Path) -> None:
    made = config(tmp_path, kind, rope__freq_base=500000.0)
    assert made.rope_parameters["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    ("layers", "heads", "width", "size", "scalar"),
    [(46, 32, 4608, 128, 144), (42, 16, 3584, 256, 256), (26, 8, 2304, 256, 256)],
)
def test_queries_of_gemma_2_are_scaled_as_its_makers_do(
    layers: int, heads: int, width: int, size: int, scalar: int, tmp_path: Path
) -> None:
    """No metadata key gives the scale of queries: Gemma 2 27B uses width / heads, and the other
    sizes use the size of a head.
    """
    sizes = {"block_count": layers, "attention__head_count": heads, "embedding_length": width}
    lengths = {"attention__key_length": size, "attention__value_length": size}
    made = config(tmp_path, "gemma2", **sizes, **lengths, final_logit_softcapping=30.0)
    assert made.query_pre_attn_scalar == scalar


@pytest.mark.parametrize(("given", "window"), [(96, 96), (0, None)])
def test_a_sliding_window_that_all_layers_have_is_the_files(
    given: int, window: int | None, tmp_path: Path
) -> None:
    made = config(tmp_path, "phi3", rope__dimension_count=16, attention__sliding_window=given)
    assert made.sliding_window == window


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("phi3", "rope.dimension_count", 8),
        ("llama", "attention.sliding_window", 96),
        ("qwen2", "attention.sliding_window", 96),
        ("llama", "attention.key_length", 32),
        ("llama", "rope.scale_linear", 4.0),
        ("llama", "rope.scaling.factor", 4.0),
        ("llama", "attention.scale", 0.5),
        ("gemma2", "attn_logit_softcapping", 20.0),
        ("gpt2", "rope.freq_base", 10000.0),
        ("gemma3", "rope.freq_base_swa", 5000.0),
        ("starcoder2", "attention.layer_norm_rms_epsilon", 0.25),
    ],
)
def test_what_the_network_would_not_do_is_refused_by_name(
    kind: str, key: str, value: float, tmp_path: Path
) -> None:
    with pytest.raises(Unusable, match=rf"has {kind}\.{key} {value}"):
        config(tmp_path, kind, **{key: value})


def test_what_a_file_says_without_need_is_read(tmp_path: Path) -> None:
    said = {"rope.scale_linear": 1.0, "rope.scaling.type": "none", "attention.value_length": 16}
    said |= {"rope.scaling.original_context_length": 128, "rope.scaling.finetuned": False}
    layout = {"tensor_data_layout": "Meta AI original pth", "rope.dimension_count": 16}
    assert config(tmp_path, "llama", **BASE, **said, **layout).head_dim == 16


def test_frequencies_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = described(file, "llama", {"rope.dimension_count": 16} | BASE)
    writer.add_tensor("rope_freqs.weight", np.ones(3, np.float32))
    write(writer)
    top = head(file)
    with pytest.raises(Unusable, match=r"3 rotary frequencies"):
        reading.read(file, top, config_of(file, top), torch.float32, grouped=False)


def saved(
    file: Path, network: Any, kind: str, metadata: dict[str, Any], left_out: str = "none"
) -> Path:
    """Write a network's weights as a file: gates and inputs of experts apart, and the output layer
    in Q8_0.
    """
    writer = described(file, kind, metadata)
    halves = {"ffn_gate_exps": 0, "ffn_up_exps": 1}
    processor = reading.TENSOR_PROCESSORS[kind](config=network.config.to_dict())
    weights = network.state_dict()
    for name, own in reading._names(kind, network, 2, processor).items():
        array = weights[own].numpy()
        stem = name.removesuffix(".weight")
        if stem[6:] in halves:
            array = np.split(array, 2, axis=1)[halves[stem[6:]]]
        if kind == "gpt2" and ".weight" in name and array.ndim == 2 and name.startswith("blk"):
            array = array.T
        stored = f"{stem}.weight" if "exps" in name else name
        if left_out in name:
            continue
        if name == "output.weight":
            array = quants.quantize(array, GGMLQuantizationType.Q8_0)
            writer.add_tensor(stored, array, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(array.squeeze()))
    write(writer)
    return file


def some_network(config: PreTrainedConfig) -> Any:
    """Return a network with random weights; those of the output layer can be stored exactly in
    Q8_0.
    """
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    rounded = quants.quantize(network.lm_head.weight.numpy(), GGMLQuantizationType.Q8_0)
    exact = quants.dequantize(rounded, GGMLQuantizationType.Q8_0)
    network.lm_head.weight.copy_(torch.from_numpy(exact))
    return network


def same(file: Path, network: Any) -> bool:
    """Return whether the file loads as this network."""
    top = head(file)
    made, missing = reading.read(file, top, config_of(file, top), torch.float32, grouped=True)
    text = torch.arange(40)[None]
    return not missing and torch.allclose(made(text).logits, network(text).logits, atol=1e-4)


def test_an_output_layer_of_gpt_2_stays_quantised(tmp_path: Path) -> None:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024, "vocab_size": 64}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    network = some_network(GPT2Config(**sizes, **tokens, tie_word_embeddings=False))
    metadata = {"context_length": 1024, "feed_forward_length": 256}
    assert same(saved(tmp_path / "model.gguf", network, "gpt2", metadata), network)


EXPERTS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 1408,
    "attention.layer_norm_rms_epsilon": 1e-6,
}


@pytest.fixture(scope="module")
def mixture() -> Any:
    """Return a mixture of four experts in each of two layers."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64, "num_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2}
    return some_network(Qwen2MoeConfig(**sizes, **heads))


def test_experts_are_joined_one_weight_after_the_other(
    mixture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the network, loading holds at most the two halves of one weight."""
    take, held = reading._Reading.take, list[int]()

    def counted(self: Any, tensor: Any) -> None:
        take(self, tensor)
        held.append(len(self._joined["tensors"]))

    monkeypatch.setattr(reading._Reading, "take", counted)
    assert same(saved(tmp_path / "model.gguf", mixture, "qwen2moe", EXPERTS), mixture)
    assert (max(held), held[-1]) == (1, 0)


@pytest.mark.parametrize("lacking", ["1.ffn_gate_exps", "1.ffn_up_exps"])
def test_half_of_a_weight_of_experts_is_refused(lacking: str, mixture: Any, tmp_path: Path) -> None:
    file = saved(tmp_path / "model.gguf", mixture, "qwen2moe", EXPERTS, lacking)
    with pytest.raises(Unusable, match=r"lacks blk.1.ffn_\w+_exps.*layers.1.mlp.experts.gate_up"):
        same(file, mixture)
