"""A configured model, and what runs it."""

from __future__ import annotations

from tandem.engine.cache.footprint import Footprint
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu.kernels import use_threads
from tandem.engine.model import load as model
from tandem.engine.runner import HFRunner


def load_model(config: ModelServiceConfig) -> model.HFModel:
    """The model; raises Unusable."""
    loaded = model.load(config.model, config.dtype, config.device, config.weights)
    use_threads(config.threads)
    return loaded


def runner_of(
    loaded: model.HFModel, positions: int, exact: bool, footprint: Footprint | None = None
) -> HFRunner:
    """What runs it, with space for so many cached tokens; raises MemoryError, OutOfMemoryError."""
    return HFRunner(loaded, positions, exact, footprint=footprint)
