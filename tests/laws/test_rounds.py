"""Rounds: the text is the target's own with any drafter, through any fault that can be survived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.generation import Generation
from orchestrator.learning import Outcome
from orchestrator.policy import Constant, Policy
from orchestrator.ports import Drafter, Verifier
from orchestrator.rounds import Round, run_round
from protos.errors import (
    Busy,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    SessionMiss,
    StaleTurn,
    TandemError,
    TransportLost,
    Unavailable,
)
from protos.types import DraftShape, Proposal, SamplingParams
from tests.laws.table import (
    VOCABULARY,
    TableDrafter,
    TableVerifier,
    Tokens,
    continuation,
    next_token,
)

PROMPT, COUNT = (2, 5, 1), 40
CHAIN, TREE = DraftShape.chain(4), DraftShape(3, 2, 6)
Fates = Sequence[TandemError | None]

drafter_faults: list[TandemError | None] = [
    None,
    SessionMiss("lost"),
    StaleTurn("old"),
    Busy("full"),
    Unavailable("down"),
    TransportLost("gone"),
    DeadlineExceeded("late"),
    Internal("bug"),
    InvalidRequest.of("context.tokens", "too many"),
]


async def generate(
    drafter: Drafter, verifier: Verifier, shape: DraftShape = CHAIN
) -> tuple[Tokens, list[Round]]:
    """A whole completion and its rounds."""
    generation = Generation(b"s" * 16, PROMPT, SamplingParams(), COUNT)
    policy, rounds = Policy.of(shape), []
    while generation.finish is None:
        rounds.append(await run_round(generation, drafter, verifier, policy))
    return tuple(generation.completion), rounds


def wrong(tokens: Tokens) -> int:
    """Never what follows."""
    return (next_token(tokens) + 1) % VOCABULARY


def moody(tokens: Tokens) -> int:
    """Sometimes what follows."""
    return next_token(tokens) if sum(tokens) % 3 else wrong(tokens)


@pytest.mark.parametrize("shape", [CHAIN, TREE, DraftShape(0)], ids=["chain", "tree", "plain"])
@pytest.mark.parametrize("guess", [next_token, wrong, moody])
async def test_the_text_is_the_targets_own_with_any_drafter(
    guess: Callable[[Tokens], int], shape: DraftShape
) -> None:
    text, rounds = await generate(TableDrafter(guess), TableVerifier(), shape)
    assert text == continuation(PROMPT, COUNT)
    assert sum((done.advance.tokens for done in rounds), ()) == text
    assert not any(done.fallback for done in rounds[:-1])


async def test_a_right_drafter_saves_rounds_and_a_wrong_one_costs_none() -> None:
    _, right = await generate(TableDrafter(next_token), TableVerifier())
    _, useless = await generate(TableDrafter(wrong), TableVerifier())
    assert len(right) == COUNT // (CHAIN.levels + 1)
    assert len(useless) == COUNT


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@given(
    drafting=st.lists(st.sampled_from(drafter_faults), max_size=30),
    verifying=st.lists(st.booleans(), max_size=30),
)
@settings(deadline=None, max_examples=60)
async def test_no_fault_of_a_drafter_and_no_lost_session_changes_the_text(
    shape: DraftShape, drafting: Fates, verifying: list[bool]
) -> None:
    misses = chain.from_iterable(
        (SessionMiss("evicted"), None) if lost else (None,) for lost in verifying
    )
    text, _ = await generate(TableDrafter(moody, iter(drafting)), TableVerifier(misses), shape)
    assert text == continuation(PROMPT, COUNT)


async def test_a_dead_drafter_is_a_flagged_fallback_and_is_asked_ever_less_often() -> None:
    drafter = TableDrafter(fates=repeat(TransportLost("gone")))
    text, rounds = await generate(drafter, TableVerifier())
    assert text == continuation(PROMPT, COUNT)
    assert len(rounds) == COUNT
    assert [done.fallback for done in rounds] == [True] * (COUNT - 1) + [False], (
        "the last token is never drafted for"
    )
    assert len(drafter.contexts) == 6, "in rounds 1, 3, 6, 11, 20 and 37"


async def test_a_drafter_that_comes_back_is_used_again() -> None:
    drafter = TableDrafter(fates=iter([Unavailable("down"), Unavailable("down")]))
    text, rounds = await generate(drafter, TableVerifier())
    assert text == continuation(PROMPT, COUNT)
    assert [done.fallback for done in rounds[:6]] == [True, True, True, True, True, False]
    assert rounds[5].advance.accepted == CHAIN.levels


async def test_plain_decoding_never_asks_the_drafter_and_is_no_fallback() -> None:
    drafter = TableDrafter()
    _, rounds = await generate(drafter, TableVerifier(), DraftShape(0))
    assert drafter.contexts == []
    assert not any(done.fallback for done in rounds)


async def test_it_is_told_in_which_rounds_a_service_read_the_prompt() -> None:
    """They take longer than others and tell nothing of what those cost."""
    told: list[Outcome] = []

    class Late(Constant):
        """No draft in the first round."""

        def next(self) -> DraftShape:
            return self.shape if told else DraftShape(0)

        def saw(self, outcome: Outcome) -> None:
            told.append(outcome)

    generation = Generation(b"s" * 16, PROMPT, SamplingParams(), COUNT)
    policy = Policy(Late(CHAIN), wants_draft=True)
    while generation.finish is None:
        await run_round(generation, TableDrafter(), TableVerifier(), policy)
    assert [each.began for each in told] == [True] + [False] * (len(told) - 1)
    assert [each.opened for each in told] == [False, True] + [False] * (len(told) - 2)
    assert [each.asked for each in told] == [False] + [True] * (len(told) - 1)
    assert len(told) > 3


async def test_no_drafter_can_claim_more_tokens_or_seconds_than_it_took() -> None:
    told: list[Outcome] = []

    class Listening(Constant):
        def saw(self, outcome: Outcome) -> None:
            told.append(outcome)

    class Boasting(TableDrafter):
        async def propose(self, *asked: Any) -> Proposal:
            return replace(await super().propose(*asked), expected=1e30, seconds=3e38)

    generation = Generation(b"s" * 16, PROMPT, SamplingParams(), COUNT)
    policy = Policy(Listening(CHAIN), wants_draft=True)
    await run_round(generation, Boasting(), TableVerifier(), policy)
    (outcome,) = told
    assert outcome.expected == CHAIN.levels
    assert outcome.draft_seconds == outcome.propose_seconds


@pytest.mark.parametrize("service", ["drafter", "verifier"])
async def test_a_lost_session_is_answered_once_by_everything_from_base_0(service: str) -> None:
    fates = iter([None, SessionMiss("evicted")])
    drafter = TableDrafter(fates=fates if service == "drafter" else None)
    verifier = TableVerifier(fates if service == "verifier" else None)
    text, rounds = await generate(drafter, verifier)
    assert text == continuation(PROMPT, COUNT)
    assert not any(done.fallback for done in rounds[:-1])
    contexts = (drafter if service == "drafter" else verifier).contexts
    told, missed, again, then = contexts[:4]
    assert (told.base, missed.base > 0, again.base, then.base > 0) == (0, True, 0, True)
    assert (missed.epoch > 0, again.epoch) == (True, 0)
    assert again.tokens == PROMPT + text[: len(again.tokens) - len(PROMPT)]
    assert [context.turn for context in contexts] == list(range(1, len(contexts) + 1))


async def test_a_verifier_that_misses_even_an_opening_fails_the_round() -> None:
    verifier = TableVerifier(repeat(SessionMiss("confused")))
    with pytest.raises(SessionMiss):
        await generate(TableDrafter(), verifier)
    assert len(verifier.contexts) == 2


@pytest.mark.parametrize(
    "fault", [Unavailable("down"), TransportLost("gone"), Busy("full"), DeadlineExceeded("late")]
)
async def test_a_verifier_that_is_away_for_a_moment_is_asked_again_with_the_same_draft(
    fault: TandemError,
) -> None:
    drafter, verifier = (
        TableDrafter(),
        TableVerifier(iter([fault, fault, None, fault, SessionMiss("restarted")])),
    )
    text, rounds = await generate(drafter, verifier)
    assert text == continuation(PROMPT, COUNT)
    assert len(drafter.contexts) == len(rounds), "the drafter is asked once a round"


@pytest.mark.parametrize(
    "fault",
    [InvalidRequest.of("context.tokens", "are too many"), StaleTurn("old"), Internal("a bug")],
)
async def test_a_verifier_that_refuses_fails_the_round_at_once(fault: TandemError) -> None:
    verifier = TableVerifier(repeat(fault))
    with pytest.raises(type(fault)) as raised:
        await generate(TableDrafter(), verifier)
    assert raised.value is fault
    tries = 1 if isinstance(fault, StaleTurn) else 2
    assert len(verifier.contexts) == tries, "the draft may be what is wrong, and is left out once"


@pytest.mark.parametrize("unfit", [InvalidRequest.of("draft", "is"), Internal("overflowed")])
async def test_a_draft_that_the_verifier_refuses_is_a_fallback_and_never_changes_the_text(
    unfit: TandemError,
) -> None:
    drafter, verifier = TableDrafter(), TableVerifier(iter([None, unfit, None, None]))
    text, rounds = await generate(drafter, verifier)
    assert text == continuation(PROMPT, COUNT)
    assert [done.fallback for done in rounds[:4]] == [False, True, True, False]
    assert [done.advance.drafted for done in rounds[:4]] == [4, 0, 0, 4]


async def test_no_level_is_drafted_that_could_not_be_emitted() -> None:
    drafter = TableDrafter(moody)
    _, rounds = await generate(drafter, TableVerifier())
    remaining = [
        COUNT - sum(len(done.advance.tokens) for done in rounds[:i]) for i in range(len(rounds))
    ]
    asked = [min(CHAIN.levels, left - 1) for left in remaining if left > 1]
    assert [shape.levels for shape in drafter.shapes] == asked
