"""The draft model that learns: its shape, what it starts from, and how it is saved.

A Mistral, so that every service runs it as it is: rotary positions and a sliding window, with which
it drafts after texts longer than any that it has learned from.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, MistralConfig, MistralForCausalLM

from tandem.protos import gguf
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id
from tandem.protos.tokenizer import tokenizer_of

WINDOW = 256  # tokens that a token sees
HEAD = 32
NARROWEST = 64
SHALLOWEST, DEEPEST = 4, 8  # layers
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "added_tokens.json"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a student. `width` is that of its layers and of the embeddings, which are tied."""

    vocabulary: int
    width: int
    layers: int

    @classmethod
    def fitting(cls, vocabulary: int, parameters: int) -> Shape:
        """The widest one with room for four layers, and as many layers as fit then; raises
        Unusable.
        """
        width = NARROWEST
        if cls(vocabulary, width, SHALLOWEST).parameters > parameters:
            least = cls(vocabulary, width, SHALLOWEST).parameters
            raise Unusable(
                f"{parameters:,} parameters are too few for a vocabulary of {vocabulary:,}: it"
                f" takes {least:,}"
            )
        while cls(vocabulary, width + HEAD, SHALLOWEST).parameters <= parameters:
            width += HEAD
        layers = (parameters - vocabulary * width) // cls(vocabulary, width, 1).of_layer
        return cls(vocabulary, width, min(DEEPEST, layers))

    @property
    def of_layer(self) -> int:
        """Parameters of a layer's matrices: half as many keys as queries, an MLP of 3 widths."""
        return 12 * self.width**2

    @property
    def parameters(self) -> int:
        """Of all matrices."""
        return self.vocabulary * self.width + self.layers * self.of_layer


def build(shape: Shape, target: Path) -> MistralForCausalLM:
    """A student with random layers. Its embeddings are the target's, in the directions in which
    those differ most, where they can be had.
    """
    given = _config(target)
    heads = shape.width // HEAD
    config = MistralConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=3 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=HEAD,
        sliding_window=WINDOW,
        max_position_embeddings=given.get("max_position_embeddings", 4096),
        tie_word_embeddings=True,
        bos_token_id=given.get("bos_token_id"),
        eos_token_id=given.get("eos_token_id"),
        pad_token_id=None,
    )
    student: MistralForCausalLM = MistralForCausalLM._from_config(
        config, attn_implementation="sdpa"
    )
    embeddings = embeddings_of(student)
    if (learned := _embeddings(target, shape.vocabulary)) is not None:
        with torch.no_grad():
            embeddings.copy_(narrowed(learned, shape.width) * embeddings.std())
    return student


def embeddings_of(student: MistralForCausalLM) -> torch.Tensor:
    """The student's embeddings [entries, width], which are those of its output too."""
    found: torch.Tensor = student.get_input_embeddings().weight  # type: ignore[assignment]
    return found


def narrowed(embeddings: torch.Tensor, width: int) -> torch.Tensor:
    """Embeddings [entries, wide] with `width` columns, whose products are as near to the products
    before as products of so many can be; with standard deviation 1, and as much of it in each.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # the largest come last
    kept = min(width, directions.shape[1])
    found = centred @ directions[:, -kept:]
    turned = torch.linalg.qr(torch.randn(width, kept, dtype=torch.float64)).Q
    spread: torch.Tensor = found @ turned.T
    return (spread / spread.std()).float()


def save(student: MistralForCausalLM, target: Path, out: Path) -> None:
    """The model in bfloat16, with the target's tokenizer beside it."""
    half = MistralForCausalLM(student.config)
    half.load_state_dict(student.state_dict())
    half.bfloat16().save_pretrained(out)
    if gguf.is_gguf(target):
        tokenizer_of(target).save(str(out / "tokenizer.json"))
        return
    for name in TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, out / name)


def vocabulary_of(target: Path) -> int:
    """How many entries a student needs for the tokens of a target; raises Unusable."""
    return max(tokens_by_id(target)) + 1


def _config(target: Path) -> dict[str, Any]:
    """What the target's configuration says; its text part, where there are several."""
    if gguf.is_gguf(target):
        known, name = gguf.metadata(target), gguf.metadata(target)["general.architecture"]
        return {
            "max_position_embeddings": known.get(f"{name}.context_length"),
            "bos_token_id": known.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": known.get("tokenizer.ggml.eos_token_id"),
        }
    found: dict[str, Any] = AutoConfig.from_pretrained(target).get_text_config().to_dict()
    return found


def _embeddings(target: Path, entries: int) -> torch.Tensor | None:
    """The target's first `entries` input embeddings, float32; None if no file names them."""
    for file in () if gguf.is_gguf(target) else sorted(target.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no dict
                if name.endswith("embed_tokens.weight"):
                    found: torch.Tensor = tensors.get_tensor(name)
                    return found[:entries].float() if len(found) >= entries else None
    return None
