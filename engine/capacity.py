"""Calculate what fits into the memory for keys and values: the number of positions, the context
length, and the number of sessions with that context length.
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

SCRATCH = 256  # positions for drafted nodes after the context


def positions_for(context_length: int, tried: int, footprint: Footprint = EVERYWHERE) -> int:
    """Return the memory that one session takes, expressed as a number of positions with memory in
    all layers. The memory suffices for the context plus the drafted nodes, or for the `tried`
    positions of the self-test, whichever is more.
    """
    length = context_length + SCRATCH + footprint.page
    pages = -(-length // footprint.page)
    spared = (pages * footprint.whole - footprint.price(pages)) * footprint.page // footprint.whole
    return max(length - spared, tried)


def most_positions(sessions: int, context_length: int, tried: int, footprint: Footprint) -> int:
    """Return the maximum number of positions that `sessions` sessions of `context_length` tokens
    can use if every position has memory in all layers.
    """
    return sessions * positions_for(context_length, tried, Footprint(page=footprint.page))


def context_of(positions: int, longest: int, footprint: Footprint = EVERYWHERE) -> int:
    """Return the maximum context length of a single session in a memory of `positions` positions.
    The result is at most `longest`.
    """
    page = footprint.page
    return min(longest, footprint.affordable(positions // page) * page - SCRATCH)


def sessions_of(
    positions: int, context_length: int, most: int, footprint: Footprint = EVERYWHERE
) -> int:
    """Return how many sessions can use their full context length at the same time in a memory of
    `positions` positions. The result is at most `most`.
    """
    page = footprint.page
    each = footprint.price(page_aligned(context_length + SCRATCH, page) // page) * page
    return min(most, positions * footprint.whole // each)


def position_cost(model: HFModel) -> int:
    """Return the bytes that one cached token takes in the memory of a device. On a CPU, all ranks
    share the memory, so the result includes the bytes of all ranks.
    """
    return model.position_bytes * (model.ranks if model.device.type == "cpu" else 1)


def footprint_for(model: HFModel, config: ModelServiceConfig) -> Footprint:
    """Return the memory footprint of a cached position for steps of at most `max_batch_tokens`
    tokens plus drafted nodes. With several ranks, positions that have left a sliding window keep
    their memory.
    """
    if model.ranks > 1:
        return EVERYWHERE
    step = config.max_batch_tokens + SCRATCH
    return footprint_of(model.layers, model.dtype, model.device, step)


def kv_memory(model: HFModel, config: ModelServiceConfig) -> tuple[str, int]:
    """Return the name of the setting that determines how much memory keys and values get, and that
    amount in bytes.
    """
    if config.kv_bytes:
        return "kv_bytes", config.kv_bytes
    left = available()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()  # frees memory blocks that loading has left behind
        free, _ = torch.cuda.mem_get_info(model.device)
        left = free - passes_bytes(model.vocab_size)
    return "kv_share", cache_bytes(left, config.kv_share)
