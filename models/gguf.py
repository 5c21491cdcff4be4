"""Convert a Llama model directory, such as those of the embedded pair, to a GGUF file, or convert a
GGUF file to another quantisation.

Model directories of other architectures are not supported: use llama.cpp's
`convert_hf_to_gguf.py` for them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    quants,
)
from safetensors.torch import load_file

FILES = {  # GGUF's codes for a file's type, which is the type of most of its weights
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
}
TYPES = {name: GGMLQuantizationType[name.upper()] for name in FILES}
WEIGHTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OTHERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def convert(folder: Path, file: Path, kind: str) -> None:
    """Convert a model directory to a GGUF file. Matrices have the type `kind`, and other weights
    are float32.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise SystemExit(f"{folder} is a {config['model_type']}, not a llama")
    writer = GGUFWriter(file, "llama")
    _describe(writer, config, kind)
    _add_tokens(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    for name, weight in load_file(folder / "model.safetensors").items():
        _add(writer, name, weight, config, TYPES[kind])
    write(writer)


def requantise(file: Path, made: Path, kind: str) -> None:
    """Write a copy of the GGUF file `file` to `made` in which all matrices have the type `kind`."""
    reader = GGUFReader(file)
    writer = GGUFWriter(made, reader.fields["general.architecture"].contents())
    copy_metadata(reader, writer)
    writer.add_file_type(FILES[kind])
    for tensor in reader.tensors:
        array = quants.dequantize(tensor.data, tensor.tensor_type)
        array = array.reshape(tensor.shape.tolist()[::-1])
        _store(writer, tensor.name, array, TYPES[kind])
    write(writer)


def _describe(writer: GGUFWriter, config: dict[str, Any], kind: str) -> None:
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_file_type(FILES[kind])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokens(writer: GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Add the vocabulary of a byte-level BPE tokenizer that splits text as GPT-2 does."""
    model, split = tokenizer["model"], tokenizer["pre_tokenizer"]
    if model["type"] != "BPE" or split["type"] != "ByteLevel" or not split["use_regex"]:
        raise SystemExit("the tokenizer is not a byte-level BPE that splits text as GPT-2 does")
    tokens = {index: token for token, index in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    for index in range(config["vocab_size"]):  # the rest of the vocabulary is padding
        tokens.setdefault(index, f"[PAD{index}]")
        kinds.setdefault(index, TokenType.UNUSED)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[index] for index in sorted(tokens)])
    writer.add_token_types([kinds[index] for index in sorted(tokens)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _add(
    writer: GGUFWriter,
    name: str,
    weight: torch.Tensor,
    config: dict[str, Any],
    kind: GGMLQuantizationType,
) -> None:
    """Add a weight under its GGUF name. Rows of query and key matrices are reordered: rotary
    embeddings rotate rows in pairs, and GGUF requires that the two rows of a pair are adjacent.
    """
    array = weight.float().numpy()
    if name.startswith("model.layers."):
        _, _, layer, what = name.removesuffix(".weight").split(".", 3)
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        if WEIGHTS[what] in heads:
            halves = array.reshape(config[heads[WEIGHTS[what]]], 2, -1, array.shape[-1])
            array = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)
        name = f"blk.{layer}.{WEIGHTS[what]}.weight"
    else:
        name = OTHERS[name]
    _store(writer, name, array, kind)


def _store(
    writer: GGUFWriter, name: str, array: npt.NDArray[np.float32], kind: GGMLQuantizationType
) -> None:
    if array.ndim == 1 or kind is GGMLQuantizationType.F32:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, quants.quantize(array, kind), raw_dtype=kind)


def copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    """Copy all metadata except the fields that say how weights are stored."""
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        listed = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], listed)


def write(writer: GGUFWriter) -> None:
    """Write the GGUF file with the metadata and the weights that the writer holds, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(
    model: Annotated[Path, typer.Argument(help="Llama model directory, or GGUF file")],
    file: Annotated[Path, typer.Argument(help="GGUF file to write")],
    type: Annotated[str, typer.Option(help=f"type of the weights: {', '.join(TYPES)}")] = "q8_0",
) -> None:
    """Convert a Llama model directory, or a GGUF file with another quantisation, to a GGUF file."""
    if type not in TYPES:
        raise SystemExit(f"--type {type} is not one of {', '.join(TYPES)}")
    (convert if model.is_dir() else requantise)(model, file, type)


if __name__ == "__main__":
    typer.run(main)
