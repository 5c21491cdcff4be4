"""What a pass over a single token takes is measured before the first request."""

from __future__ import annotations

import time

from tandem.engine.config import ModelServiceConfig
from tandem.engine.loading import load_model, runner_of
from tandem.engine.schedule.profile import light_seconds
from tandem.engine.schedule.scheduler import ModelThread
from tests.conftest import Pair
from tests.laws.machine import LIMITS

POSITIONS = 1024


def test_a_thread_knows_what_a_pass_takes_before_it_has_run_one(embedded: Pair) -> None:
    loaded = load_model(ModelServiceConfig(model=embedded.target, threads=1))
    runner = runner_of(loaded, POSITIONS, exact=True)
    began = time.perf_counter()
    light = light_seconds(runner)
    assert 0 < light < time.perf_counter() - began
    assert runner.pool.allocate(POSITIONS), "it holds no memory"
    ignore = lambda _: None  # noqa: E731
    with ModelThread(runner, runner.wait, LIMITS, ignore, ignore, light=light) as thread:
        assert thread.progress.passes(time.perf_counter()).light == light
        first = thread.progress.began(0.0, predicted=0.0, light=0.0)
        assert first.passes(0.0).light == light
