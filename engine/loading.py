"""A configured model, by the backend that runs such files: a directory by ours, a GGUF file by
llama.cpp.

The one place that knows both.
"""

from __future__ import annotations

from engine.config import ModelServiceConfig
from engine.forward.cpu.kernels import use_threads
from engine.gguf import model as gguf
from engine.gguf.runner import Runner
from engine.model import load as model
from engine.port import ModelRunner
from engine.runner import Forward
from protos.gguf import is_gguf


def load(config: ModelServiceConfig) -> model.Model | gguf.Model:
    """The model; raises Unusable."""
    if is_gguf(config.model):
        return gguf.load(config.model, config.dtype, config.device, config.weights, config.threads)
    loaded = model.load(config.model, config.dtype, config.device, config.weights)
    use_threads(config.threads)
    return loaded


def runner(loaded: model.Model | gguf.Model, positions: int, exact: bool) -> ModelRunner:
    """What runs it, with room for so many cached tokens; raises MemoryError, OutOfMemoryError."""
    if isinstance(loaded, model.Model):
        return Forward(loaded, positions, exact)
    return Runner(loaded, loaded.context(positions), positions, exact)
