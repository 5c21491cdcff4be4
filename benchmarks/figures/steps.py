"""Build and time what the engine benchmarks compare: steps of the engine in exact or fast mode,
steps of transformers with its own cache, and plain memory reads of as many bytes as the weights
have.

This module only measures times, and does not interpret them.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from tandem.engine.cache.pages import PAGE
from tandem.engine.forward.segment import Segment
from tandem.engine.model.load import HFModel
from tandem.engine.runner import HFRunner
from tandem.protos import tree
from tandem.protos.errors import Unusable

Action = Callable[[], object]
Name = TypeVar("Name")
CACHED_ALONE = 256  # number of cached tokens if there is one session
MIN_CACHED, MAX_CACHED = 64, 448  # range of cached tokens if there are several sessions
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Feed:
    """The input of a step: one tree of tokens per session. Logits are computed for every token."""

    sessions: int
    parents: tuple[int, ...]

    def __str__(self) -> str:
        shape = "" if tree.is_chain(self.parents) else ", tree"
        return f"{self.sessions} x {self.tokens}{shape}"

    @property
    def tokens(self) -> int:
        """The number of tokens per session."""
        return len(self.parents)


@dataclass(frozen=True, slots=True)
class Text:
    """Random tokens that all sessions share. Each session's cache holds the beginning of the text,
    at most `limit` tokens, and a step feeds the tokens that follow.
    """

    ids: tuple[int, ...]
    limit: int

    @classmethod
    def fit(cls, model: HFModel, most_fed: int) -> Text:
        """Make a random text: first the tokens to cache, and then `most_fed` tokens to feed. There
        are MAX_CACHED cached tokens, or as many as fit into the model's context. Raises Unusable if
        the context is too short.
        """
        limit = min(MAX_CACHED, model.context_length - most_fed)
        if limit < 1:
            raise Unusable(f"a context of {model.context_length} tokens is too short to benchmark")
        rng = random.Random(0)
        return cls(tuple(rng.randrange(model.token_count) for _ in range(limit + most_fed)), limit)

    def contexts(self, sessions: int) -> list[int]:
        """Return the number of cached tokens of each session. Several sessions get different
        numbers, evenly spread from few to many.
        """
        if sessions == 1:
            return [min(CACHED_ALONE, self.limit)]
        first, last = min(MIN_CACHED, self.limit), min(MAX_CACHED, self.limit)
        return [first + (last - first) * session // (sessions - 1) for session in range(sessions)]


class Engine:
    """The engine in one mode, with `sessions` sessions whose KV caches hold the text."""

    @torch.inference_mode()
    def __init__(
        self,
        build: Callable[[int], HFRunner],  # argument: number of positions of the KV cache
        text: Text,
        sessions: int,
    ) -> None:
        length = len(text.ids)
        self._text = text
        self.forward = build(sessions * (length + PAGE))
        allocated = [self.forward.pool.allocate(length) for _ in range(sessions)]
        self._tables = [table for table in allocated if table]
        assert len(self._tables) == sessions, "the pool has room for all"
        self.forward([Segment(self._tables[0], 0, text.ids, tree.chain(length), 1)])
        for table in self._tables[1:]:
            self.forward.pool.copy(self._tables[0], table, 0, length)

    def step(self, feed: Feed) -> Action:
        """Return a function that feeds all sessions in one forward pass."""
        segments = [
            Segment(
                table,
                context,
                self._text.ids[context:][: feed.tokens],
                feed.parents,
                feed.tokens,
            )
            for table, context in zip(
                self._tables, self._text.contexts(feed.sessions), strict=False
            )
        ]
        return partial(self.forward, segments)


class Library:
    """A model as transformers runs it, one session at a time, each with a DynamicCache."""

    def __init__(
        self, folder: Path, dtype: torch.dtype, text: Text, device: torch.device = CPU
    ) -> None:
        network: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa"
        )
        self.network: PreTrainedModel = network.to(device)
        self._text = text
        self._filled = DynamicCache()
        self._pass(self._filled, torch.tensor([text.ids], device=device))

    def step(self, feed: Feed) -> Action:
        """Return a function that feeds all sessions, one after another, and then removes the fed
        tokens from their caches.
        """
        sessions = []
        for context in self._text.contexts(feed.sessions):
            cache = copy.deepcopy(self._filled)
            cache.crop(context - len(self._text.ids))
            ids = self._text.ids[context:][: feed.tokens]
            sessions.append((cache, torch.tensor([ids], device=self.network.device)))

        def run() -> None:
            for cache, ids in sessions:
                self._pass(cache, ids)
                cache.crop(-feed.tokens)

        return run

    @torch.inference_mode()
    def _pass(self, cache: DynamicCache, ids: torch.Tensor) -> None:
        self.network(input_ids=ids, past_key_values=cache, use_cache=True)


def weights_read(network: PreTrainedModel) -> int:
    """Return the bytes of the weights that a step reads. Embeddings that are only used for lookup
    are not counted.
    """
    embeddings = {module.weight for module in network.modules() if isinstance(module, nn.Embedding)}
    looked_up = embeddings - {network.get_output_embeddings().weight}
    return sum(weight.nbytes for weight in network.parameters() if weight not in looked_up)


def reading(count: int, device: torch.device = CPU) -> Action:
    """Return a function that reads `count` bytes as fast as this machine can, by summing them."""
    return torch.ones(count // 4, device=device).sum


def timed(actions: Mapping[Name, Action], turns: Iterable[int]) -> dict[Name, float]:
    """Time functions, and return the median seconds of each function over all turns except turn 0.
    In each turn, all functions run once in a new random order, so that other load on the machine
    affects all of them equally.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in actions}
    order, rng = list(actions), random.Random(0)
    for turn in turns:
        rng.shuffle(order)
        for name in order:
            began = time.perf_counter()
            actions[name]()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - began)
    return {name: median(each) for name, each in seconds.items()}
