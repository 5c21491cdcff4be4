"""A GGUF file as the engine needs it: loaded, checked, refused when it cannot work.

Raises Unusable with a line that names the file and what to do instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tandem.engine.gguf.llama import SEQUENCES, ContextSize, LlamaContext, LlamaModel
from tandem.engine.gguf.reference import reference_logits
from tandem.engine.model.reference import ReferenceLogits
from tandem.protos.errors import Unusable
from tandem.protos.fingerprint import tokens_by_id

CELLS = {"float32": (0, 4), "float16": (1, 2), "bfloat16": (30, 2), "auto": (1, 2)}
"""What a number of a cached token is: ggml's number of the type, and its bytes."""
FULL = "full"
CPU = torch.device("cpu")
REFUSED = {
    "is_recurrent": "keeps a state that cannot be rolled back",
    "is_hybrid": "keeps a state that cannot be rolled back",
    "is_diffusion": "does not write a token at a time",
    "has_encoder": "is an encoder-decoder",
}


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A loaded file (`engine.model_runner.LoadedModel`). `numbers`: what most weights are stored
    as.
    """

    weights_file: LlamaModel
    kind: str
    reference: ReferenceLogits
    vocab_size: int
    token_count: int
    context_length: int
    end_token_ids: tuple[int, ...]
    numbers: str
    size: ContextSize  # of a context, but for the cells
    position_bytes: int  # that a cached token takes
    device: torch.device = CPU
    kernels: str = "llama.cpp"

    def context(self, positions: int, sequences: int = SEQUENCES) -> LlamaContext:
        """A cache of so many tokens, and what decodes into it; raises MemoryError."""
        size = replace(self.size, cells=positions, sequences=sequences)
        return LlamaContext(self.weights_file, size)


def load(
    file: Path, dtype: str | None = None, device: str = "cpu", weights: str = FULL, threads: int = 1
) -> GGUFModel:
    """Load a GGUF file; `dtype` is that of cached keys and values, `auto` is to attend as llama.cpp
    does by itself: half precision, flash attention. Raises Unusable.
    """
    if device != "cpu":
        raise Unusable(f"device {device} does not apply to {file}: GGUF models run on the CPU")
    if weights != FULL:
        raise Unusable(f"weights {weights} does not apply to {file}: it has its own, as stored")
    tokens = tokens_by_id(file)
    loaded = LlamaModel(file)
    kind = loaded.metadata("general.architecture") or "model"
    for question, problem in REFUSED.items():
        if loaded.query(question):
            raise Unusable(f"{file} cannot be served: {kind} {problem}")
    stored = _stored(loaded)
    number, number_bytes = CELLS[dtype or "float32"]
    size = ContextSize(0, number, dtype == "auto", threads)
    longest = _context_length(loaded)
    return GGUFModel(
        weights_file=loaded,
        kind=kind,
        reference=reference_logits(loaded, size, stored, longest),
        vocab_size=loaded.lib.llama_vocab_n_tokens(loaded.vocabulary),
        token_count=max(tokens) + 1,
        context_length=longest,
        end_token_ids=loaded.end_token_ids(),
        numbers=stored,
        size=size,
        position_bytes=number_bytes * _numbers(loaded, kind),
    )


def _stored(loaded: LlamaModel) -> str:
    """What most weights are stored as, e.g. `q8_0`."""
    prefix, kind = "LLAMA_FTYPE_", loaded.query("ftype") & ~loaded.lib.LLAMA_FTYPE_GUESSED
    named = (name for name in dir(loaded.lib) if name.startswith(prefix))
    name = next((name for name in named if getattr(loaded.lib, name) == kind), f"{prefix}{kind}")
    return name.removeprefix(prefix).removeprefix("ALL_").removeprefix("MOSTLY_").lower()


def _context_length(loaded: LlamaModel) -> int:
    """How far it was trained, or as far as all see all: cells that a window has left after may be
    lost, and then there is no way back.
    """
    trained, window = loaded.query("n_ctx_train"), loaded.query("n_swa")
    return int(min(trained, window - 1) if window > 0 else trained)


def _numbers(loaded: LlamaModel, kind: str) -> int:
    """How many numbers a cached token is, in all layers."""
    usual = loaded.query("n_embd") // max(1, loaded.query("n_head"))
    sizes = (
        loaded.metadata(f"{kind}.attention.{what}_length") or usual for what in ("key", "value")
    )
    return int(loaded.query("n_layer") * loaded.query("n_head_kv") * sum(map(int, sizes)))
