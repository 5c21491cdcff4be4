"""The controller finds what pays: in simulated worlds it is about as fast as the best fixed shape,
and never much slower than no drafts at all.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from drafter_service.growth import ROOT, Child, Growth
from orchestrator.beliefs import LESSONS, SETTLING, TRIAL
from orchestrator.goodput import Adaptive, Goodput
from orchestrator.learning import Outcome, Trust
from orchestrator.policy import Amount, Constant
from protos import tree
from protos.types import DraftShape

MOST = DraftShape(8, 4, 32)
FIXED = [
    DraftShape(0),
    *(DraftShape.chain(levels) for levels in (1, 2, 4)),
    *(DraftShape(levels, 4, nodes) for levels, nodes in ((4, 8), (6, 16), (8, 32))),
]


@dataclass(frozen=True)
class Costs:
    """Of a round, in seconds."""

    call: float  # to the drafter and back
    level: float
    verify: float
    node: float

    def distant(self, round_trip: float) -> Costs:
        """The same with a drafter so far away."""
        return Costs(self.call + round_trip, self.level, self.verify, self.node)


SMALL, LARGE, GPU = (
    Costs(0.001, 0.002, 0.006, 0.0002),
    Costs(0.002, 0.003, 0.03, 0.001),
    Costs(0.001, 0.001, 0.02, 0.00002),
)


@dataclass
class Guesses:
    """A drafter whose likeliest token is right with a chance drawn anew at every place, and which
    believes it to be `pride` times as likely.
    """

    skill: tuple[float, float]  # of a beta distribution
    pride: float = 1.0
    rng: random.Random = field(default_factory=lambda: random.Random(3))

    def draft(self, shape: DraftShape) -> tuple[int, int, float, int]:
        """Levels, nodes, how many are expected to stand, and how many do."""
        growth, right = Growth(shape, 4 * shape.nodes), {ROOT}

        def sprout(node: int) -> None:
            first = min(0.99, max(0.01, self.rng.betavariate(*self.skill)))
            chances = [first * (1 - first) ** place for place in range(4)]
            believed = (math.log(min(0.99, chance * self.pride)) for chance in chances)
            known = len(growth.nodes)
            growth.sprout(node, [Child(place, gain) for place, gain in enumerate(believed)])
            drawn, total = self.rng.random(), list(itertools.accumulate(chances))
            right.update(
                child
                for child in range(known, len(growth.nodes))
                if 0
                <= total[growth.nodes[child].token] - drawn
                < chances[growth.nodes[child].token]
            )

        sprout(ROOT)
        while nodes := growth.frontier():
            for node in nodes:
                sprout(node)
        draft, _ = growth.finish()
        tokens, at = {(n.parent, n.token): i for i, n in enumerate(growth.nodes)}, ROOT
        accepted, children = 0, tree.children(draft.parents)
        place = -1
        while True:
            standing = [
                (child, tokens[at, draft.tokens[child]])
                for child in children[place + 1]
                if tokens[at, draft.tokens[child]] in right
            ]
            if not standing:
                break
            (place, at), accepted = standing[0], accepted + 1
        levels = max(tree.depths(draft.parents), default=-1) + 1
        return levels, len(draft), growth.expected, accepted


def rate(
    guesses: Guesses,
    costs: Costs,
    sessions: int,
    amount: Callable[[Goodput], Amount],
    tokens: int,
    skipped: float = 1 / 3,
) -> float:
    """Tokens per second of sessions that share the verifier's steps, while each emits `tokens`; a
    first part does not count.
    """
    goodput, noise = Goodput(), random.Random(1)
    goodput.running = sessions
    amounts = [amount(goodput) for _ in range(sessions)]
    clocks, emitted, drafted = [0.0] * sessions, [0] * sessions, [0] * sessions
    began: tuple[float, int] | None = None
    while min(emitted) < tokens:
        at = min(range(sessions), key=clocks.__getitem__)
        shape = amounts[at].next()
        levels, nodes, expected, accepted = guesses.draft(shape) if shape.levels else (0, 0, 0.0, 0)
        drafting = costs.level * max(1, levels) * noise.lognormvariate(0, 0.1)
        propose = costs.call + drafting if shape.levels else 0.0
        drafted[at] = nodes
        verify = (costs.verify + costs.node * sum(drafted)) * noise.lognormvariate(0, 0.1)
        clocks[at] += propose + verify
        emitted[at] += 1 + accepted
        amounts[at].saw(
            Outcome(
                levels=levels,
                nodes=nodes,
                expected=expected,
                accepted=accepted,
                asked=shape.levels > 0,
                propose_seconds=propose,
                draft_seconds=drafting,
                verify_seconds=verify,
                token_seconds=costs.node,
            )
        )
        if began is None and min(emitted) >= tokens * skipped:
            began = max(clocks), sum(emitted)
    assert began is not None
    return (sum(emitted) - began[1]) / (max(clocks) - began[0])


@pytest.mark.parametrize("skill", [(6, 1.5), (1, 60)], ids=["good", "hopeless"])
@pytest.mark.parametrize("costs", [SMALL, LARGE, GPU], ids=["small", "large", "gpu"])
@pytest.mark.parametrize("round_trip", [0, 0.02, 0.08])
@pytest.mark.parametrize("sessions", [1, 8])
def test_the_controller_keeps_up_with_the_best_fixed_shape(
    skill: tuple[float, float], costs: Costs, round_trip: float, sessions: int
) -> None:
    tokens = 900 // sessions + 300
    costs = costs.distant(round_trip)
    rates = [
        rate(Guesses(skill), costs, sessions, lambda _, s=shape: Constant(s), tokens)
        for shape in FIXED
    ]
    mine = rate(Guesses(skill), costs, sessions, lambda g: Adaptive(MOST, g), tokens)
    assert mine >= 0.9 * max(rates)
    assert mine >= 0.98 * rates[0]


@pytest.mark.parametrize("pride", [0.6, 1.5])
def test_a_drafter_that_misjudges_itself_costs_little(pride: float) -> None:
    rates = [
        rate(Guesses((6, 1.5), pride), LARGE, 1, lambda _, s=shape: Constant(s), 900)
        for shape in FIXED
    ]
    mine = rate(Guesses((6, 1.5), pride), LARGE, 1, lambda g: Adaptive(MOST, g), 900)
    assert mine >= 0.9 * max(rates)


def test_a_drafter_that_becomes_good_is_noticed() -> None:
    goodput = Goodput()
    goodput.running = 1
    amount = Adaptive(MOST, goodput)

    def run(accepted: int, rounds: int) -> float:
        drafted = 0
        for _ in range(rounds):
            shape = amount.next()
            asked = shape.levels > 0
            drafted += asked
            stood, expected = accepted * asked, 2.0 * shape.trust * asked
            amount.saw(
                Outcome(4 * asked, 8 * asked, expected, stood, asked, 0.01 * asked, 0.008, 0.02, 0)
            )
        return drafted / rounds

    run(3, 50)
    assert run(3, 100) > 0.9
    run(0, 200)
    assert run(0, 300) < 0.1, "and one that becomes bad"
    run(3, 1500)
    assert run(3, 100) > 0.9


def outcome(**told: float) -> Outcome:
    """A round of a draft of four levels, but for what is told."""
    usual = {"levels": 4, "nodes": 8, "expected": 2.0, "accepted": 2, "asked": True}
    times = {"propose_seconds": 0.01, "draft_seconds": 0.008, "verify_seconds": 0.02}
    return Outcome(**{**usual, **times, "token_seconds": 0.0, **told})


def test_one_call_that_hung_is_not_what_calls_cost() -> None:
    goodput = Goodput()
    for _ in range(50):
        goodput.saw(outcome())
    usual = goodput.beliefs.costs.drafted.value
    goodput.saw(outcome(verify_seconds=30.0))
    assert goodput.beliefs.costs.drafted.value < 1.2 * usual


def test_time_lost_to_a_drafter_that_does_not_answer_is_no_cost_of_plain_rounds() -> None:
    goodput = Goodput()
    for _ in range(50):
        goodput.saw(outcome(asked=False, levels=0, nodes=0, accepted=0, propose_seconds=5.0))
    assert goodput.beliefs.costs.plain.value == pytest.approx(0.02)


def test_trust_that_is_lost_comes_back_when_nothing_was_worth_a_try() -> None:
    trust = Trust()
    for _ in range(200):
        trust.saw(outcome(expected=5.0, accepted=0), 0.1)
    lost = trust.log
    for _ in range(100):
        trust.saw(outcome(nodes=0, expected=0.0, accepted=0), 0.1)
    assert lost < -1 and trust.log > 0.1 * lost


def test_a_trial_ends_soon_when_most_have_left() -> None:
    goodput = Goodput()
    goodput.running = 64
    plain = outcome(asked=False, levels=0, nodes=0, accepted=0)
    for _ in range(1 + (SETTLING + TRIAL) * goodput.running):
        goodput.saw(plain)
    assert goodput.trial, "nothing is known of drafts"
    goodput.running, rounds = 1, 0
    while goodput.trial and rounds < 100:
        goodput.saw(outcome())
        rounds += 1
    assert rounds == sum(SETTLING + length for length in (TRIAL, *LESSONS)), "of this one alone"
