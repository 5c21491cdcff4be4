"""What a pass costs is measured before the first request."""

from __future__ import annotations

import time

from tandem.engine.config import ModelServiceConfig
from tandem.engine.loading import load_model, runner_of
from tandem.engine.schedule.cost import StepLoad
from tandem.engine.schedule.profile import SIZES, profiled
from tandem.engine.schedule.scheduler import ModelThread
from tests.conftest import Pair
from tests.laws.machine import LIMITS

POSITIONS = 1024


def test_a_thread_knows_what_a_pass_costs_before_it_has_run_one(embedded: Pair) -> None:
    loaded = load_model(ModelServiceConfig(model=embedded.target, threads=1))
    runner = runner_of(loaded, POSITIONS, exact=True)
    began = time.perf_counter()
    cost = profiled(runner)
    most = time.perf_counter() - began
    one, more = (cost.predict(StepLoad.chunk(size, 0)) for size in (1, max(SIZES)))
    assert 0 < one <= more <= most
    assert runner.pool.allocate(POSITIONS), "it holds no memory"
    with ModelThread(runner, LIMITS, lambda _: None, lambda _: None, cost=cost) as thread:
        assert thread.progress.passes(time.perf_counter()).light == one
