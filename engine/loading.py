"""A configured model, by the backend that runs such files: a directory by ours, a GGUF file by
llama.cpp.

The one place that knows both.
"""

from __future__ import annotations

from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.cpu.kernels import use_threads
from tandem.engine.gguf import model as gguf
from tandem.engine.gguf.runner import GGUFRunner
from tandem.engine.model import load as model
from tandem.engine.model_runner import ModelRunner
from tandem.engine.runner import HFRunner
from tandem.protos.gguf import is_gguf


def load_model(config: ModelServiceConfig) -> model.HFModel | gguf.GGUFModel:
    """The model; raises Unusable."""
    if is_gguf(config.model):
        return gguf.load(config.model, config.dtype, config.device, config.weights, config.threads)
    loaded = model.load(config.model, config.dtype, config.device, config.weights)
    use_threads(config.threads)
    return loaded


def runner_of(loaded: model.HFModel | gguf.GGUFModel, positions: int, exact: bool) -> ModelRunner:
    """What runs it, with space for so many cached tokens; raises MemoryError, OutOfMemoryError."""
    if isinstance(loaded, model.HFModel):
        return HFRunner(loaded, positions, exact)
    return GGUFRunner(loaded, loaded.context(positions), positions, exact)
