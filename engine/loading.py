"""Load the configured model, and make the runner that runs it."""

from __future__ import annotations

from tandem.engine.cache.footprint import Footprint
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu.kernels import use_threads
from tandem.engine.model import load as model
from tandem.engine.runner import HFRunner


def load_model(config: ModelServiceConfig) -> model.HFModel:
    """Load the configured model, and set the kernels' threads; raises Unusable."""
    loaded = model.load(config.model, config.dtype, config.device, config.weights)
    use_threads(config.threads)
    return loaded


def runner_of(
    loaded: model.HFModel, positions: int, exact: bool, footprint: Footprint | None = None
) -> HFRunner:
    """Make a runner with memory for `positions` cached tokens; raises MemoryError or
    OutOfMemoryError.
    """
    return HFRunner(loaded, positions, exact, footprint=footprint)
