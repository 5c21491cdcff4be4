"""Load the configured model, and make the runner that runs it."""

from __future__ import annotations

from functools import partial

import torch

from tandem.engine.cache.footprint import Footprint
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu.kernels import use_threads
from tandem.engine.forward.cuda.batch_invariance import disable_split_k
from tandem.engine.model import load as model
from tandem.engine.model.configuration import configuration, judging
from tandem.engine.model.linears import FULL
from tandem.engine.parallel.leading import Follower, LeadingRunner
from tandem.engine.parallel.ranks import Ranks
from tandem.engine.parallel.shards import Shard, check_split
from tandem.engine.runner import HFRunner
from tandem.protos.errors import Unusable
from tandem.protos.gguf import is_gguf
from tandem.protos.service.process import configure_logging


def ranks_of(config: ModelServiceConfig) -> Ranks | None:
    """Start the other processes of a model that is split among several processes. Return None if
    the model is not split. Raises Unusable if the model cannot be split.
    """
    count = config.tensor_parallel
    if count == 1:
        return None
    if is_gguf(config.model) or config.weights != FULL:
        raise Unusable(f"{config.model} cannot be split among ranks: its weights are quantised")
    found = configuration(config.model, None, config.device)
    with judging(config.model, found):
        check_split(found, count)
    return Ranks(count, config.device, partial(follower, config))


def load_model(config: ModelServiceConfig, shard: Shard | None = None) -> model.HFModel:
    """Load the configured model, or one rank's part of it, and set the number of kernel threads.
    Raises Unusable.
    """
    device = shard.device(config.device) if shard else config.device
    loaded = model.load(config.model, config.dtype, device, config.weights, shard)
    use_threads(config.rank_threads)
    return loaded


def runner_of(
    loaded: model.HFModel,
    positions: int,
    exact: bool,
    footprint: Footprint | None = None,
    ranks: Ranks | None = None,
) -> HFRunner:
    """Make a runner with memory for `positions` cached tokens; raises MemoryError or
    OutOfMemoryError.
    """
    if ranks:
        return LeadingRunner(ranks, loaded, positions, exact)
    return HFRunner(loaded, positions, exact, footprint=footprint)


def follower(config: ModelServiceConfig, shard: Shard) -> Follower:
    """In the process of another rank, load that rank's part of the model."""
    configure_logging(config.log_level, config.log_format)
    torch.set_num_threads(config.rank_threads)
    if config.exact is not False and config.device.startswith("cuda"):
        disable_split_k()
    return Follower(load_model(config, shard))
