"""Current models start with default settings, with the context for which there is memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tandem.engine.cache.pool import position_bytes
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import hosting, load_and_test
from tandem.protos.errors import Unusable
from tests.geometries import MODELS, SIZES, TINY, layers_of, save_random

# free memory of a machine with 24 GB on which a target, a drafter and other programs run
LEFT = 16 << 30
FEW = 2  # number of layers, which get their share of that memory
SHARE = ModelServiceConfig.model_fields["kv_share"].default
MARGIN = 512  # more than the number of positions that are kept for drafted nodes
LIMITED = "the context is as long as memory allows"
MakeRandom = Callable[..., Path]


@pytest.fixture(scope="module")
def make_random(tmp_path_factory: pytest.TempPathFactory) -> MakeRandom:
    """Return a function that makes a directory of a well-known model, with random weights."""
    return lambda name, *given, **other: save_random(
        name, tmp_path_factory.mktemp("random"), *given, **other
    )


@pytest.fixture
def make_tiny(make_random: MakeRandom, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes such a model with few layers, true sizes of keys and values, and
    all other sizes tiny. The free memory is set to the share of these layers, whatever this machine
    has.
    """

    def make(name: str) -> Path:
        left = LEFT * FEW // SIZES[name]["num_hidden_layers"]
        monkeypatch.setattr("tandem.engine.capacity.available", lambda: left)
        return make_random(name, torch.float32, **TINY, num_hidden_layers=FEW)

    return make


def held(name: str, dtype: torch.dtype) -> int:
    """Return the positions that fit into memory for all layers."""
    return int(SHARE * LEFT) // position_bytes(layers_of(name), dtype)


async def described(config: ModelServiceConfig) -> tuple[int, list[Any]]:
    """Return the context with which a model is served, and the warnings that the context was
    limited.
    """
    with capture_logs() as lines:
        async with hosting(config, "verify", True, CollectorRegistry()) as host:
            length = host.describe().context_length
            assert host.sessions.context_length == length
            assert host.runner.pool.allocate(length), "a session of that length fits"
    return length, [line for line in lines if line["event"] == LIMITED]


@pytest.mark.parametrize("name", MODELS)
async def test_a_model_of_today_starts_with_default_settings(
    name: str, make_tiny: Callable[[str], Path]
) -> None:
    length, warnings = await described(ModelServiceConfig(model=make_tiny(name), threads=1))
    own, most = SIZES[name]["max_position_embeddings"], held(name, torch.float32)
    assert length == own if most > own + MARGIN else most - MARGIN < length < most
    assert length >= 16384
    said = [(line["context_length"], line["model_context_length"]) for line in warnings]
    assert said == [(length, own)] * (length < own)


async def test_a_context_that_was_asked_for_is_held_or_refused(
    make_tiny: Callable[[str], Path],
) -> None:
    folder = make_tiny("Llama-3.2-1B")
    asked = ModelServiceConfig(model=folder, threads=1, context_length=50_000)
    assert await described(asked) == (50_000, [])
    too_long = asked.model_copy(update={"context_length": 131_072})
    problem = r"kv_share 614\.4MiB is less than one session needs, 1\.0GiB; raise it or lower"
    with pytest.raises(Unusable, match=problem):
        load_and_test(too_long, exact=True)


async def test_memory_that_was_set_limits_the_context_too(
    make_tiny: Callable[[str], Path],
) -> None:
    """The model has two layers with two heads of 128 for keys and for values, with 4 bytes per
    number.
    """
    config = ModelServiceConfig(model=make_tiny("Qwen2.5-1.5B"), threads=1, kv_bytes="64MiB")
    length, (warning,) = await described(config)
    positions = warning["kv_bytes"] // (FEW * 2 * 2 * 128 * 4)
    assert positions - MARGIN < length < positions == 16384


@pytest.mark.long("loads models of up to 3 GB")
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen2.5-1.5B"])
async def test_a_model_of_today_starts_with_its_true_widths(
    name: str, make_random: MakeRandom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model has few layers and is in bfloat16."""
    monkeypatch.setattr("tandem.engine.capacity.available", lambda: LEFT)
    folder = make_random(name, torch.bfloat16, num_hidden_layers=FEW, pad_token_id=None)
    length, warnings = await described(ModelServiceConfig(model=folder))
    assert (length, warnings) == (SIZES[name]["max_position_embeddings"], [])
