"""Memory for keys and values as sessions see it: how many positions there are, how long a context
they hold, and how many sessions of it.
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

SCRATCH = 256  # positions after the longest context for drafted nodes


def positions_for(context_length: int, tried: int, footprint: Footprint = EVERYWHERE) -> int:
    """Positions, in all layers, whose memory one session of a context takes, with what is drafted
    after it, or the self-test if that is more.
    """
    length = context_length + SCRATCH + footprint.page
    pages = -(-length // footprint.page)
    spared = (pages * footprint.whole - footprint.price(pages)) * footprint.page // footprint.whole
    return max(length - spared, tried)


def most_positions(sessions: int, context_length: int, tried: int, footprint: Footprint) -> int:
    """Positions that so many sessions of a context can use at most, with memory in all layers."""
    return sessions * positions_for(context_length, tried, Footprint(page=footprint.page))


def context_of(positions: int, longest: int, footprint: Footprint = EVERYWHERE) -> int:
    """The longest text that a session can have in the memory of so many positions, up to
    `longest`.
    """
    page = footprint.page
    return min(longest, footprint.affordable(positions // page) * page - SCRATCH)


def sessions_of(
    positions: int, context_length: int, most: int, footprint: Footprint = EVERYWHERE
) -> int:
    """How many sessions have their whole context in the memory of so many positions at once, of
    `most`.
    """
    page = footprint.page
    each = footprint.price(page_aligned(context_length + SCRATCH, page) // page) * page
    return min(most, positions * footprint.whole // each)


def position_cost(model: HFModel) -> int:
    """Bytes that one cached token takes of a device's memory, which ranks on a CPU share."""
    return model.position_bytes * (model.ranks if model.device.type == "cpu" else 1)


def footprint_for(model: HFModel, config: ModelServiceConfig) -> Footprint:
    """What a model's positions take, with steps as they are set and what is drafted. Ranks keep
    what windows have left, too.
    """
    if model.ranks > 1:
        return EVERYWHERE
    step = config.max_batch_tokens + SCRATCH
    return footprint_of(model.layers, model.dtype, model.device, step)


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
