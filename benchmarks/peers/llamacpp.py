"""llama.cpp as a system to compare with. The module runs single steps of llama.cpp, and completes
prompts with and without drafted chains. Everything runs in this process and on one thread.

As in llama.cpp's own programs, keys and values are float16, with flash attention on or off. As in
llama.cpp's `speculative-simple`, drafts are the likeliest tokens of the draft model, and a drafted
token is accepted if the target samples the same token.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.benchmarks.figures.steps import Action, Feed, Text
from tandem.benchmarks.peers.systems import Completion, Prompt

BATCH = 512  # maximum tokens of a batch
KINDS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
Logits = npt.NDArray[np.float32]


def installed() -> bool:
    """Return whether llama.cpp is installed."""
    return find_spec("llama_cpp") is not None and find_spec("gguf") is not None


def convert(folder: Path, file: Path, dtype: str) -> None:
    """Write a model directory as a GGUF file with the same weights. Raises SystemExit for a model
    that is not a Llama.
    """
    import_module("tandem.models.gguf").convert(folder, file, KINDS[dtype])


class Llama:
    """A loaded GGUF file with a cache of `tokens` tokens, which `sequences` sequences share. With
    `flash` attention, the default, steps of one row are faster, and steps of many rows are slower.
    """

    def __init__(self, file: Path, tokens: int, sequences: int = 1, flash: bool = True) -> None:
        self._lib: Any = import_module("llama_cpp")
        self._quiet = self._lib.llama_log_callback(lambda level, text, data: None)
        self._lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self._model = self._lib.llama_model_load_from_file(
            str(file).encode(), self._lib.llama_model_default_params()
        )
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = tokens, sequences, True
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = 1
        if not flash:
            params.flash_attn_type = self._lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = self._lib.llama_init_from_model(self._model, params)
        self._memory = self._lib.llama_get_memory(self._context)
        vocabulary = self._lib.llama_model_get_vocab(self._model)
        self._vocab_size = self._lib.llama_vocab_n_tokens(vocabulary)
        self.end = self._lib.llama_vocab_eos(vocabulary)
        self._batch = self._lib.llama_batch_init(BATCH, 0, 1)

    def decode(self, rows: Sequence[tuple[int, int, int]]) -> Logits:
        """Feed rows of (token, position, sequence). Returns the logits of all rows, [rows, vocab],
        which are valid until the next call.
        """
        batch = self._batch
        batch.n_tokens = len(rows)
        for row, (token, position, sequence) in enumerate(rows):
            batch.token[row], batch.pos[row] = token, position
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, sequence, 1
        if failed := self._lib.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {failed}")
        logits = self._lib.llama_get_logits(self._context)
        found: Logits = np.ctypeslib.as_array(logits, shape=(len(rows), self._vocab_size))
        return found

    def feed(self, tokens: Sequence[int], start: int) -> Logits:
        """Feed a text's next tokens, at most `BATCH`, to the first sequence."""
        return self.decode([(token, start + place, 0) for place, token in enumerate(tokens)])

    def cut(self, length: int, sequence: int = 0) -> None:
        """Remove all but the first `length` tokens of a sequence from the cache."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def share(self, sequence: int, length: int) -> None:
        """Let another sequence share the first `length` cached tokens of the first sequence."""
        self._lib.llama_memory_seq_cp(self._memory, 0, sequence, 0, length)


class Steps:
    """Runs steps of llama.cpp on sequences that have cached prefixes of one text, of different
    lengths.
    """

    def __init__(self, file: Path, text: Text, sessions: int, flash: bool) -> None:
        self._llama = Llama(file, (2 + sessions) * len(text.ids), sessions + 1, flash)
        self._text = text
        for start in range(0, len(text.ids), BATCH):
            self._llama.feed(text.ids[start : start + BATCH], start)

    def step(self, feed: Feed) -> Action:
        """Return a function that feeds all sessions in one batch, computes all logits, and then
        removes the fed tokens from the cache.
        """
        contexts = self._text.contexts(feed.sessions)
        rows = [
            (self._text.ids[context + place], context + place, number)
            for number, context in enumerate(contexts, 1)
            for place in range(feed.tokens)
        ]

        def run() -> None:
            for number, context in enumerate(contexts, 1):
                self._llama.share(number, context)
            self._llama.decode(rows)
            for number in range(1, len(contexts) + 1):
                self._llama.cut(0, number)

        return run


class LlamaCpp:
    """Completes prompts with llama.cpp, either without drafts or with chains of `drafted` tokens
    from a draft model.
    """

    def __init__(
        self, target: Path, draft: Path | None, drafted: int, tokens: int, temperature: float = 0.0
    ) -> None:
        # flash attention is used where it is faster
        self._target = Llama(target, tokens, flash=draft is None)
        self._draft = Llama(draft, tokens) if draft else None
        self._drafted = drafted
        self._temperature = temperature
        self._known: list[int] = []  # tokens in the draft model's cache
        self._random = np.random.default_rng(0)

    async def complete(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        """Complete a prompt in a thread, so that the event loop can keep the channels of other
        systems alive.
        """
        return await asyncio.to_thread(self._complete, prompt, max_new_tokens)

    def _complete(self, prompt: Prompt, max_new_tokens: int) -> Completion:
        text, steps = list(prompt), 0
        for llama in filter(None, (self._target, self._draft)):
            llama.cut(0)
        logits = self._target.feed(prompt, 0)
        text.append(self._drawn(logits[-1]))
        self._known.clear()
        while len(text) < len(prompt) + max_new_tokens and text[-1] != self._target.end:
            left = len(prompt) + max_new_tokens - len(text) - 1
            proposals = self._proposals(text, min(self._drafted, left))
            start = len(text) - 1
            logits = self._target.feed([text[-1], *proposals], start)
            steps += 1
            for proposal, row in zip([*proposals, -1], logits, strict=True):
                text.append(self._drawn(row))
                if text[-1] != proposal or text[-1] == self._target.end:
                    break
            self._target.cut(len(text) - 1)
        return Completion(tuple(text[len(prompt) :]), steps)

    def _proposals(self, text: list[int], count: int) -> list[int]:
        """Draft a chain of `count` tokens greedily with the draft model."""
        if self._draft is None or count < 1:
            return []
        pairs = enumerate(zip(self._known, text[:-1], strict=False))
        held = next((place for place, (one, other) in pairs if one != other), None)
        held = min(len(self._known), len(text) - 1) if held is None else held
        self._draft.cut(held)
        row = self._draft.feed(text[held:], held)[-1]
        proposals = [int(row.argmax())]
        while len(proposals) < count:
            place = len(text) + len(proposals) - 1
            proposals.append(int(self._draft.feed(proposals[-1:], place)[-1].argmax()))
        self._known = text + proposals[:-1]
        return proposals

    def _drawn(self, row: Logits) -> int:
        if not self._temperature:
            return int(row.argmax())
        weights = np.exp((row - row.max()).astype(np.float64) / self._temperature)
        return int(self._random.choice(len(row), p=weights / weights.sum()))
