"""The controller in a crowd: requests that share steps cannot be judged one by one."""

from __future__ import annotations

from orchestrator.goodput import Adaptive, Goodput
from tests.laws.test_goodput import MOST, outcome


def test_a_cost_is_learned_only_while_most_do_the_same() -> None:
    goodput = Goodput()
    goodput.running = 4
    crowd = [Adaptive(MOST, goodput) for _ in range(4)]
    assert all(each.next().levels for each in crowd)
    crowd[0].saw(outcome())
    known, goodput._settling = goodput.beliefs.costs.drafted.value, 0
    assert known and not crowd[0].next().levels, "now the first of them tries plain rounds"
    crowd[1].saw(outcome(verify_seconds=0.03))
    crowd[0].saw(outcome(asked=False, levels=0, nodes=0, accepted=0))
    assert goodput.beliefs.costs.drafted.value == known
    assert goodput.beliefs.costs.plain.weight == 0
