"""Memory for keys and values as sessions see it: how many positions there are, how long a context
they hold, and how many sessions of it.
"""

from __future__ import annotations

import torch

from tandem.engine.cache.pages import PAGE, page_aligned
from tandem.engine.config import ModelServiceConfig
from tandem.engine.memory import available, cache_bytes, passes_bytes
from tandem.engine.model.load import HFModel

SCRATCH = 256  # positions after the longest context for drafted nodes


def positions_for(context_length: int, tried: int, page: int = PAGE) -> int:
    """Positions that one session of a context takes, with what is drafted after it, or that the
    self-test takes if that is more.
    """
    return max(context_length + SCRATCH + page, tried)


def context_of(positions: int, longest: int, page: int = PAGE) -> int:
    """The longest text that a session can have in so many positions, up to `longest`."""
    return min(longest, positions // page * page - SCRATCH)


def sessions_of(positions: int, context_length: int, most: int, page: int = PAGE) -> int:
    """How many sessions have their whole context in so many positions at once, of `most`."""
    return min(most, positions // page_aligned(context_length + SCRATCH, page))


def kv_memory(model: HFModel, config: ModelServiceConfig) -> tuple[str, int]:
    """Bytes for keys and values, after the setting that decides how many."""
    if config.kv_bytes:
        return "kv_bytes", config.kv_bytes
    left = available()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # what loading left
        free, _ = torch.cuda.mem_get_info(model.device)
        left = free - passes_bytes(model.vocab_size)
    return "kv_share", cache_bytes(left, config.kv_share)
