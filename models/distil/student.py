"""The student, which is the draft model to train: its size, its initial weights, and how it is
saved with its model card.

The student has the Mistral architecture, so that every service can load it without conversion.
Rotary position embeddings and a sliding window let the student draft for texts that are longer than
its training texts.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, MistralConfig, MistralForCausalLM

from tandem.models.distil.acceptance import CHAIN
from tandem.models.distil.course import Course
from tandem.protos import gguf
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id
from tandem.protos.tokenizer import tokenizer_of

SLIDING_WINDOW = 256  # number of most recent tokens that a token attends to
HEAD_SIZE = 32
MIN_WIDTH = 64
MIN_LAYERS, MAX_LAYERS = 4, 8
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "added_tokens.json"),
)

CARD = """# A draft model for {target}

`tandem distil` made this model on {day}. It proposes tokens for `{target}`, which decides what is
accepted. It is of no use by itself.

| | |
|---|---|
| architecture | Mistral, {layers} layers, width {width}, window of {window} tokens |
| parameters | {parameters:,} |
| tokenizer | the target's |
| learned from | {tokens:,} tokens of the target's own answers |
| training | {minutes:.0f} minutes, {steps:,} steps |
| tokens per step | {best:.2f}: chains of {chain}, temperature 0, answers to other prompts |

    tandem up --target {target} --draft {out}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a student. `width` is the size of its hidden states and of its embeddings. Input
    and output embeddings are tied.
    """

    vocabulary: int
    width: int
    layers: int

    @classmethod
    def fitting(cls, vocabulary: int, parameters: int) -> Shape:
        """Return the shape of a student with at most `parameters` parameters. The student gets the
        largest width that leaves enough parameters for MIN_LAYERS layers. It then gets as many
        layers as its parameters allow, up to MAX_LAYERS. Raises Unusable if there are too few
        parameters.
        """
        width = MIN_WIDTH
        if cls(vocabulary, width, MIN_LAYERS).parameters > parameters:
            least = cls(vocabulary, width, MIN_LAYERS).parameters
            raise Unusable(
                f"{parameters:,} parameters are too few for a vocabulary of {vocabulary:,} tokens:"
                f" at least {least:,} are required"
            )
        while cls(vocabulary, width + HEAD_SIZE, MIN_LAYERS).parameters <= parameters:
            width += HEAD_SIZE
        layers = (parameters - vocabulary * width) // cls(vocabulary, width, 1).layer_parameters
        return cls(vocabulary, width, min(MAX_LAYERS, layers))

    @property
    def layer_parameters(self) -> int:
        """The number of parameters in the matrices of one layer. There are half as many key heads
        as query heads, and the MLP is 3 times as wide as the hidden states.
        """
        return 12 * self.width**2

    @property
    def parameters(self) -> int:
        """The number of parameters in all matrices."""
        return self.vocabulary * self.width + self.layers * self.layer_parameters


def build(shape: Shape, target: Path) -> MistralForCausalLM:
    """Create a student with random layers. The student's embeddings are the target's embeddings,
    projected onto their directions of largest variance. If the target's embeddings cannot be read,
    the student's embeddings are random.
    """
    given = _config(target)
    heads = shape.width // HEAD_SIZE
    config = MistralConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=3 * shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if heads % 2 == 0 else heads,
        head_dim=HEAD_SIZE,
        sliding_window=SLIDING_WINDOW,
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
    """The student's embeddings [entries, width], which its output layer uses too."""
    found: torch.Tensor = student.get_input_embeddings().weight  # type: ignore[assignment]
    return found


def narrowed(embeddings: torch.Tensor, width: int) -> torch.Tensor:
    """Project embeddings [entries, wide] to `width` columns. As in a principal component analysis,
    the projection preserves the dot products between centred embeddings as well as possible, up to
    a constant factor. The new embeddings have a standard deviation of 1, and a random rotation
    spreads their variance over all columns.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    # the directions with the largest variance come last
    _, directions = torch.linalg.eigh(centred.T @ centred)
    kept = min(width, directions.shape[1])
    found = centred @ directions[:, -kept:]
    turned = torch.linalg.qr(torch.randn(width, kept, dtype=torch.float64)).Q
    spread: torch.Tensor = found @ turned.T
    return (spread / spread.std()).float()


def save(student: MistralForCausalLM, target: Path, out: Path) -> None:
    """Save the student in bfloat16, together with the target's tokenizer."""
    half = MistralForCausalLM(student.config)
    half.load_state_dict(student.state_dict())
    half.bfloat16().save_pretrained(out)
    if gguf.is_gguf(target):
        tokenizer_of(target).save(str(out / "tokenizer.json"))
        return
    for name in TOKENIZER_FILES:
        if (target / name).is_file():
            shutil.copyfile(target / name, out / name)


def write_card(out: Path, target: Path, shape: Shape, tokens: int, course: Course) -> None:
    """Write the model card to README.md in the model's folder: what the model is, how it was
    trained, and its measured tokens per step. `tokens` is the number of tokens that the student
    learned from.
    """
    text = CARD.format(
        target=target,
        out=out,
        day=date.today().isoformat(),
        layers=shape.layers,
        width=shape.width,
        window=SLIDING_WINDOW,
        parameters=shape.parameters,
        tokens=tokens,
        minutes=course.minutes,
        steps=course.step,
        best=course.looks[-1],
        chain=CHAIN,
    )
    (out / "README.md").write_text(text, encoding="utf-8")


def vocabulary_of(target: Path) -> int:
    """Return the vocabulary size that a student of this target needs. Raises Unusable."""
    return max(tokens_by_id(target)) + 1


def _config(target: Path) -> dict[str, Any]:
    """Return the target's configuration or, for a multimodal target, that of its language model."""
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
    """Return the target's first `entries` input embeddings as float32, or None if its files do not
    have that many.
    """
    for file in () if gguf.is_gguf(target) else sorted(target.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no dict
                if name.endswith("embed_tokens.weight"):
                    found: torch.Tensor = tensors.get_tensor(name)
                    return found[:entries].float() if len(found) >= entries else None
    return None
