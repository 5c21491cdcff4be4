"""llama.cpp as far as it is used here: a file of weights, and contexts that decode batches.

The one place that touches `llama_cpp`, whose functions are C's own: whatever they return instead of
an error is raised here. Knows no KV ranges and no trees.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.protos.errors import Unusable

SEQUENCES = 256  # llama.cpp's LLAMA_MAX_SEQ
CELLS = 256  # it counts cells in so many
BATCH = 512  # tokens of one decode
INSTALL = "GGUF models need llama.cpp: pip install 'tandem-serving[gguf]'"
_quiet: list[Callable[..., None]] = []  # what C calls must live as long as the process


def library() -> Any:
    """The bindings, their log silenced; raises Unusable if they are not installed."""
    try:
        lib: Any = import_module("llama_cpp")
    except (ImportError, OSError, RuntimeError) as error:
        raise Unusable(INSTALL) from error
    if not _quiet:
        _quiet.append(lib.llama_log_callback(lambda level, text, data: None))
        lib.llama_log_set(_quiet[0], ctypes.c_void_p(0))
        lib.llama_backend_init()
    return lib


class LlamaModel:
    """A file that was loaded; raises Unusable."""

    def __init__(self, file: Path) -> None:
        self.lib = library()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._free = self.lib.llama_model_free
        self.model = self.lib.llama_model_load_from_file(str(file).encode(), params)
        if not self.model:
            raise Unusable(f"{file} cannot be loaded by llama.cpp: damaged, or too new for it")
        self.vocabulary = self.lib.llama_model_get_vocab(self.model)
        self._users = 1

    def __del__(self) -> None:
        if getattr(self, "model", None):
            self.release()

    def hold(self) -> None:
        """A context uses the weights: garbage collection may find this object first."""
        self._users += 1

    def release(self) -> None:
        """A context, or this object, uses them no more."""
        self._users -= 1
        if not self._users:
            self._free(self.model)

    def query(self, question: str) -> Any:
        """What `llama_model_<question>` answers."""
        return getattr(self.lib, f"llama_model_{question}")(self.model)

    def metadata(self, key: str) -> str | None:
        """A line of the file's metadata."""
        text = ctypes.create_string_buffer(256)
        size = self.lib.llama_model_meta_val_str(self.model, key.encode(), text, len(text))
        return text.value.decode(errors="replace") if size >= 0 else None

    def end_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text or a turn."""
        count = self.lib.llama_vocab_n_tokens(self.vocabulary)
        ends = self.lib.llama_vocab_is_eog
        return tuple(token for token in range(count) if ends(self.vocabulary, token))


@dataclass(slots=True)
class BatchRow:
    """A token to be fed at a position of some sequences, and whether its logits are wanted."""

    token: int
    position: int
    sequences: list[int] = field(default_factory=list)
    wanted: bool = False


@dataclass(frozen=True, slots=True)
class ContextSize:
    """Of a context: cells of its cache, their type, CPU threads, and whether it attends by flash
    attention, which is faster and sums in half precision, whatever the type of the cells.
    """

    cells: int
    kind: int
    flash: bool = False
    threads: int = 1
    sequences: int = SEQUENCES


class LlamaContext:
    """A cache of cells that any sequences share, and decodes into it; raises MemoryError."""

    def __init__(self, weights: LlamaModel, size: ContextSize) -> None:
        self._lib, self._weights = weights.lib, weights
        self._free = self._lib.llama_free
        params = self._lib.llama_context_default_params()
        params.n_ctx = -(-size.cells // CELLS) * CELLS
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max, params.kv_unified = size.sequences, True
        params.swa_full, params.no_perf, params.offload_kqv = True, True, False
        params.n_threads = params.n_threads_batch = size.threads
        params.type_k = params.type_v = size.kind
        switch = "ENABLED" if size.flash else "DISABLED"
        params.flash_attn_type = getattr(self._lib, f"LLAMA_FLASH_ATTN_TYPE_{switch}")
        self._context = self._lib.llama_init_from_model(weights.model, params)
        if not self._context:
            raise MemoryError("llama.cpp made no context")
        weights.hold()
        self._memory = self._lib.llama_get_memory(self._context)
        self._vocab_size = self._lib.llama_vocab_n_tokens(weights.vocabulary)

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._free(self._context)
            self._context = None
            self._weights.release()

    def decode(self, rows: Sequence[BatchRow]) -> npt.NDArray[np.float32]:
        """Feed rows, `BATCH` at a time; logits of the wanted ones, [wanted, vocab]."""
        pieces = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        return np.concatenate([self._decode(piece) for piece in pieces])

    def _decode(self, rows: Sequence[BatchRow]) -> npt.NDArray[np.float32]:
        wanted = sum(row.wanted for row in rows)
        counts = np.array([len(row.sequences) for row in rows], np.int32)
        sequences = np.array([each for row in rows for each in row.sequences], np.int32)
        first = sequences.ctypes.data + 4 * (counts.cumsum() - counts).astype(np.uint64)
        arrays: dict[str, npt.NDArray[Any]] = {
            "token": np.array([row.token for row in rows], np.int32),
            "pos": np.array([row.position for row in rows], np.int32),
            "n_seq_id": counts,
            "seq_id": first.astype(np.uint64),
            "logits": np.array([row.wanted for row in rows], np.int8),
        }
        batch = self._lib.llama_batch(n_tokens=len(rows))
        for name, kind in batch._fields_:
            if name in arrays:
                setattr(batch, name, arrays[name].ctypes.data_as(kind))
        if failed := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        shape = (wanted, self._vocab_size)
        if not wanted:
            return np.empty(shape, np.float32)
        logits = self._lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=shape).copy()

    def remove(self, sequence: int, start: int) -> None:
        """A sequence ends before position `start`. Does nothing once the context is freed: a job
        that is garbage-collected together with it may end later.
        """
        if self._context is None:
            return
        self._lib.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def copy(self, source: int, target: int, stop: int) -> None:
        """An empty sequence gets what another holds up to position `stop`: the same cells."""
        self._lib.llama_memory_seq_cp(self._memory, source, target, 0, stop)

    def clear(self) -> None:
        """Nothing is cached, and all cells are zero."""
        self._lib.llama_memory_clear(self._memory, True)
