"""The cost of a pass is learned from noisy steps, follows changes of the machine, and stays
plausible.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.schedule.cost import WARM_UP_STEPS, CostModel, StepLoad


@dataclass(frozen=True)
class Machine:
    """A machine with fixed seconds per step, token, key and session, which pads rows to a
    multiple.
    """

    step: float
    token: float
    key: float
    session: float
    multiple: int = 1

    def seconds(self, load: StepLoad) -> float:
        rows = -(-load.tokens // self.multiple) * self.multiple
        cost = self.step + self.token * rows
        return cost + self.key * load.attended + self.session * load.sessions


CPU = Machine(0.02, 4e-3, 2e-7, 5e-4)
GPU = Machine(0.012, 2e-5, 3e-9, 1e-4)
SMALL = Machine(3e-4, 2e-5, 1e-8, 1e-5)
machines = pytest.mark.parametrize("machine", [CPU, GPU, SMALL], ids=["cpu", "gpu", "small"])


def serving(draw: random.Random) -> StepLoad:
    """Draw sessions that draft or verify, now and then with a prompt beside them."""
    load = StepLoad()
    for _ in range(draw.randint(1, 16)):
        load += StepLoad.chunk(draw.choice([1, 1, 1, draw.randint(2, 16)]), draw.randint(0, 4000))
    if draw.random() < 0.3:
        load += StepLoad.chunk(draw.randint(16, 512), draw.randint(0, 4000))
    return load


def decoding(draw: random.Random) -> StepLoad:
    return StepLoad.chunk(1, draw.randint(100, 1000))


def observe(
    model: CostModel,
    machine: Machine,
    steps: int,
    noise: float = 0.15,
    hiccups: float = 0.0,
    loads: Callable[[random.Random], StepLoad] = serving,
    slower: float = 1.0,
) -> CostModel:
    """Teach a model this many steps; a share of `hiccups` of them takes ten times as long."""
    draw = random.Random(7)
    for _ in range(steps):
        load = loads(draw)
        seconds = slower * machine.seconds(load) * math.exp(draw.gauss(0, noise))
        model.learn(load, seconds * (10 if draw.random() < hiccups else 1))
    return model


def misfit(model: CostModel, machine: Machine, slower: float = 1.0) -> list[float]:
    """Return the relative errors against the noiseless machine, on loads that the model did not
    learn from.
    """
    draw = random.Random(8)
    loads = [serving(draw) for _ in range(200)]
    return [abs(model.predict(load) / slower / machine.seconds(load) - 1) for load in loads]


loads = st.builds(StepLoad, st.integers(0, 5000), st.integers(0, 10**9), st.integers(0, 500))
seconds = st.floats(1e-6, 1e4)
histories = st.lists(st.tuples(loads, seconds), min_size=1, max_size=60)


def taught(history: list[tuple[StepLoad, float]]) -> CostModel:
    model = CostModel()
    for load, took in history:
        model.learn(load, took)
    return model


@machines
@pytest.mark.parametrize(("hiccups", "error"), [(0.0, 0.03), (0.02, 0.04)])
def test_a_machine_is_recovered_from_noisy_steps(
    machine: Machine, hiccups: float, error: float
) -> None:
    errors = misfit(observe(CostModel(), machine, 600, hiccups=hiccups), machine)
    assert mean(errors) < error
    assert max(errors) < 0.15, "not even the rarest load is off by more than the noise"


def test_padded_rows_are_met_in_the_middle() -> None:
    machine = Machine(0.02, 4e-3, 2e-7, 5e-4, multiple=8)
    assert mean(misfit(observe(CostModel(), machine, 600), machine)) < 0.1


def test_a_hiccup_at_the_very_first_step_is_soon_outvoted() -> None:
    model, draw = CostModel(), random.Random(1)
    load = serving(draw)
    model.learn(load, 10 * CPU.seconds(load))
    assert mean(misfit(observe(model, CPU, 40, noise=0.05), CPU)) < 0.1


@machines
@pytest.mark.parametrize("slower", [2.0, 0.5])
def test_a_machine_that_changes_speed_is_followed(machine: Machine, slower: float) -> None:
    model = observe(CostModel(), machine, 400)
    assert mean(misfit(model, machine, slower)) > 0.4
    observe(model, machine, 300, slower=slower)
    assert mean(misfit(model, machine, slower)) < 0.05


@machines
def test_one_prompt_after_many_single_tokens_tells_what_tokens_cost(machine: Machine) -> None:
    model = observe(CostModel(), machine, 300, loads=decoding, noise=0.05)
    prompt, token = StepLoad.chunk(300, 0), StepLoad.chunk(1, 500)
    model.learn(prompt, machine.seconds(prompt))
    assert model.predict(prompt) == pytest.approx(machine.seconds(prompt), rel=0.1)
    assert model.predict(token) == pytest.approx(machine.seconds(token), rel=0.1)


def test_the_error_is_of_predictions_made_before_learning() -> None:
    model = observe(CostModel(), CPU, WARM_UP_STEPS)
    assert model.error == 0
    load = StepLoad.chunk(10, 100)
    predicted = model.predict(load)
    model.learn(load, 3 * predicted)
    assert model.error == pytest.approx(2 / 3)


def test_nothing_is_known_before_the_first_step() -> None:
    model = CostModel()
    assert model.predict(StepLoad.chunk(100, 100)) == 0
    assert model.tokens_within(1.0, StepLoad(), 1000, 64) == 0


@given(st.integers(1, 500), st.integers(0, 10_000), seconds)
def test_after_one_step_more_load_costs_more(tokens: int, keys: int, took: float) -> None:
    load = StepLoad.chunk(tokens, keys)
    model = taught([(load, took)])
    assert model.predict(load) == pytest.approx(took, rel=0.01)
    more = [
        load + StepLoad(1, 0, 0),
        load + StepLoad(0, 1, 0),
        load + StepLoad(0, 0, 1),
        load + load,
    ]
    assert 0 < model.predict(StepLoad.chunk(1, 0)) <= model.predict(load)
    assert all(model.predict(load) < model.predict(other) < math.inf for other in more)
    assert model.predict(load + load) < 2 * took, "a step has a price of its own"


@given(histories, loads, loads)
def test_no_history_makes_a_prediction_negative_or_more_load_cheaper(
    history: list[tuple[StepLoad, float]], load: StepLoad, more: StepLoad
) -> None:
    model = taught(history)
    assert 0 <= model.predict(load) <= model.predict(load + more) < math.inf
    assert 0 <= model.error <= 1
    assert any(model.predict(seen) > 0 for seen, _ in history)


def test_a_step_too_short_for_the_clock_is_no_failure() -> None:
    assert 0 < taught([(StepLoad.chunk(1, 0), 0.0)]).predict(StepLoad.chunk(1, 0)) < 1e-6


def test_a_term_that_fades_for_very_long_stays_finite() -> None:
    model = taught([(StepLoad(1, 1000, 1), 0.01)])
    for _ in range(2):
        model._gram *= 1e-200  # shrinks the sums as a hundred thousand steps do
        model._sum *= 1e-200
        model.learn(StepLoad(1, 0, 1), 0.01)
        assert 0 < model.predict(StepLoad(1, 1000, 1)) < math.inf


@given(histories, loads, st.integers(0, 10_000), st.integers(0, 600), st.floats(0, 100))
def test_tokens_within_is_the_most_that_fits(
    history: list[tuple[StepLoad, float]], base: StepLoad, keys: int, most: int, budget: float
) -> None:
    model = taught(history)
    tokens = model.tokens_within(budget, base, keys, most)
    assert 0 <= tokens <= most
    if tokens > 0:
        assert model.predict(base + StepLoad.chunk(tokens, keys)) <= budget
    if tokens < most:
        assert model.predict(base + StepLoad.chunk(tokens + 1, keys)) > budget


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 500))
def test_a_prompt_in_two_chunks_attends_as_much_as_in_one(one: int, two: int, keys: int) -> None:
    parts = StepLoad.chunk(one, keys) + StepLoad.chunk(two, keys + one)
    assert parts == StepLoad.chunk(one + two, keys) + StepLoad(sessions=1)
    rows = range(1, one + 1)
    assert StepLoad.chunk(one, keys) == StepLoad(one, sum(keys + row for row in rows), 1)
