"""The controller in a crowd: requests that share steps cannot be judged one by one."""

from __future__ import annotations

from orchestrator.beliefs import SETTLING, TRIAL
from orchestrator.goodput import Adaptive, Goodput, Load
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


def test_a_trial_is_as_long_as_those_make_it_whom_it_is_for() -> None:
    load = Load(running=32)
    goodput = Goodput(load)
    goodput.running = 1
    amount, rounds = Adaptive(MOST, goodput), 0
    while not goodput.beliefs.costs.known or goodput.trial is False:
        asked = amount.next().levels > 0
        amount.saw(outcome() if asked else outcome(asked=False, levels=0, nodes=0, accepted=0))
        rounds += 1
    assert rounds <= 2 * (SETTLING + TRIAL), "31 others draft as they were told"


def test_what_is_believed_depends_on_all_who_share_the_steps() -> None:
    load = Load(running=1)
    goodput = Goodput(load)
    goodput.running = 1
    alone = goodput.beliefs
    load.running = 32
    for _ in range(100):
        goodput.saw(outcome())
    assert goodput.beliefs is not alone
