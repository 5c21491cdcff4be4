"""Convert the memory for keys and values into a number of positions, a context length, and a number
of sessions of that length.
"""

from __future__ import annotations

import torch

from tandem.engine.cache.footprint import Footprint
from tandem.engine.cache.ledger import EVERYWHERE
from tandem.engine.cache.pages import page_aligned
from tandem.engine.cache.pool import footprint_of
from tandem.engine.config import ModelServiceConfig
from tandem.engine.memory import available, cache_bytes, passes_bytes
from tandem.engine.model.load import HFModel

SCRATCH = 256  # positions for drafted nodes, after the longest context


def positions_for(context_length: int, tried: int, footprint: Footprint = EVERYWHERE) -> int:
    """Return how much memory one session takes, counted in positions with memory in all layers. A
    session has its context and the drafted nodes after the context, and at least the `tried`
    positions of the self-test.
    """
    length = context_length + SCRATCH + footprint.page
    pages = -(-length // footprint.page)
    spared = (pages * footprint.whole - footprint.price(pages)) * footprint.page // footprint.whole
    return max(length - spared, tried)


def most_positions(sessions: int, context_length: int, tried: int, footprint: Footprint) -> int:
    """Return the most positions that `sessions` sessions of `context_length` tokens can use if each
    position has memory in all layers.
    """
    return sessions * positions_for(context_length, tried, Footprint(page=footprint.page))


def context_of(positions: int, longest: int, footprint: Footprint = EVERYWHERE) -> int:
    """Return the length of the longest text that one session can have in the memory of `positions`
    positions, but at most `longest`.
    """
    page = footprint.page
    return min(longest, footprint.affordable(positions // page) * page - SCRATCH)


def sessions_of(
    positions: int, context_length: int, most: int, footprint: Footprint = EVERYWHERE
) -> int:
    """Return how many sessions, up to `most`, can have their whole context in the memory of
    `positions` positions at once.
    """
    page = footprint.page
    each = footprint.price(page_aligned(context_length + SCRATCH, page) // page) * page
    return min(most, positions * footprint.whole // each)


def position_cost(model: HFModel) -> int:
    """Return the bytes of a device's memory that one cached token takes. On a CPU, all ranks share
    the memory.
    """
    return model.position_bytes * (model.ranks if model.device.type == "cpu" else 1)


def footprint_for(model: HFModel, config: ModelServiceConfig) -> Footprint:
    """Return the memory footprint of a model's positions if a step feeds `max_batch_tokens` tokens
    and drafted nodes. If there are several ranks, positions that are no longer in a sliding window
    keep their memory.
    """
    if model.ranks > 1:
        return EVERYWHERE
    step = config.max_batch_tokens + SCRATCH
    return footprint_of(model.layers, model.dtype, model.device, step)


def kv_memory(model: HFModel, config: ModelServiceConfig) -> tuple[str, int]:
    """Return the name of the setting that decides how much memory keys and values get, and the
    number of bytes.
    """
    if config.kv_bytes:
        return "kv_bytes", config.kv_bytes
    left = available()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # frees memory blocks that loading left
        free, _ = torch.cuda.mem_get_info(model.device)
        left = free - passes_bytes(model.vocab_size)
    return "kv_share", cache_bytes(left, config.kv_share)
