"""Enlarge a small Llama to a realistic size without changing its logits, except for rounding.

The enlarged model writes the same texts as the small model, so drafts are accepted as before, but
its steps take as long as those of any model of that size. This module reads and writes model
directories. No service imports this module.

    python -m tandem.models.grow SOURCE OUT --hidden 768 --heads 24 --kv-heads 12 --mlp 2560
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tandem.protos.errors import TandemError, Unusable

WRITERS = ("embed_tokens", "o_proj", "down_proj")  # layers that write to the residual stream
PROBE_TOKENS = 60
TOLERANCE = 1e-3  # largest permitted difference between two logits


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a Llama, named as in transformers. With the vocabulary of the embedded
    pair, the defaults give a model of 110 million parameters.
    """

    hidden_size: int = 768
    num_attention_heads: int = 24
    num_key_value_heads: int = 12
    intermediate_size: int = 2560
    num_hidden_layers: int = 14


@dataclass(frozen=True, slots=True)
class Grown:
    """The result of enlarging a model: its new number of parameters, and the largest difference
    between a logit of the enlarged model and the same logit of its source.
    """

    parameters: int
    difference: float


def grow(source: Path, out: Path, shape: Shape) -> Grown:
    """Enlarge the model in the directory `source`, and save it in the directory `out`. Raises
    Unusable.
    """
    if not (source / "config.json").is_file():
        raise Unusable(f"{source} is not a model directory: it has no config.json")
    if out.resolve() == source.resolve():
        raise Unusable(f"{source} cannot be grown in place")
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    if found := problem(config.to_dict(), shape):
        raise Unusable(f"{source} cannot be grown: {found}")
    small = load(source)
    large = enlarged(small, shape)
    large.save_pretrained(out)
    for file in source.glob("tokenizer*"):
        shutil.copy(file, out)
    parameters = large.num_parameters()
    del large
    worst = difference(small, load(out))
    if not worst <= TOLERANCE:
        raise Unusable(f"{out} does not compute what {source} does: logits differ by {worst:.2g}")
    return Grown(parameters, worst)


def load(folder: Path) -> LlamaForCausalLM:
    """Load a model directory in float32."""
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    return model  # from_pretrained turns dropout off


def problem(config: Mapping[str, Any], shape: Shape) -> str | None:
    """Return why a model of this configuration cannot be enlarged to a shape, or None if it can."""
    if config["model_type"] != "llama":
        return f"it is a {config['model_type']}, not a llama"
    for name, size in asdict(shape).items():
        if size < config[name]:
            return f"its {name} is {config[name]}, more than {size}"
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    old, kv_old = config["num_attention_heads"], config["num_key_value_heads"]
    if heads * kv_old != old * kv_heads:
        return f"{heads} and {kv_heads} heads are not in the ratio of its {old} and {kv_old} heads"
    if shape.hidden_size % heads:
        return f"a width of {shape.hidden_size} is not a multiple of {heads} heads"
    return None


@torch.no_grad()
def enlarged(small: LlamaForCausalLM, shape: Shape) -> LlamaForCausalLM:
    """Create a large random model that contains the small model in the corner of its tensors.

    Outside this corner, all weights that write to the residual stream are zero. The added channels
    of the residual stream therefore stay zero, and the other random weights have no effect. A norm
    divides by the root mean square over all channels. The added zeros make the root mean square
    smaller, so the norms' weights and epsilon are scaled to compensate.
    """
    wider = shape.hidden_size / small.config.hidden_size
    config = small.config.to_dict() | asdict(shape)
    config["rms_norm_eps"] /= wider
    config["dtype"] = "float32"
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        large: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig.from_dict(config)).eval()
    large.generation_config = small.generation_config
    old = small.state_dict()
    for name, tensor in large.state_dict().items():
        if any(writer in name for writer in WRITERS):
            tensor.zero_()
        if name in old:
            values = old[name] / math.sqrt(wider) if "norm" in name else old[name]
            tensor[tuple(map(slice, values.shape))] = values
    return large


@torch.inference_mode()
def difference(one: LlamaForCausalLM, other: LlamaForCausalLM) -> float:
    """Return the largest difference between the logits of two models on a few random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(one.config.vocab_size, (1, PROBE_TOKENS), generator=generator)
    return float((one(ids).logits - other(ids).logits).abs().max())


SHAPE = Shape()


def main(
    source: Annotated[Path, typer.Argument(help="model directory of a small Llama")],
    out: Annotated[Path, typer.Argument(help="folder for the enlarged model")],
    hidden: Annotated[int, typer.Option(help="residual width")] = SHAPE.hidden_size,
    heads: Annotated[int, typer.Option(help="query heads")] = SHAPE.num_attention_heads,
    kv_heads: Annotated[int, typer.Option(help="key-value heads")] = SHAPE.num_key_value_heads,
    mlp: Annotated[int, typer.Option(help="MLP width")] = SHAPE.intermediate_size,
    layers: Annotated[int, typer.Option(help="layers")] = SHAPE.num_hidden_layers,
) -> None:
    """Enlarge a small Llama to a realistic size without changing its logits."""
    logging.disable_progress_bar()
    try:
        grown = grow(source, out, Shape(hidden, heads, kv_heads, mlp, layers))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    print(
        f"{out}: {grown.parameters / 1e6:.1f} million parameters;"
        f" logits differ by at most {grown.difference:.1g}"
    )


if __name__ == "__main__":
    typer.run(main)
