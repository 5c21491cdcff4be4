"""A relay passes commits and proposals: whatever breaks, the text is the target's own, and no step
waits for a drafter.
"""

from __future__ import annotations

import pytest

from tandem.orchestrator.rounds.generation import Finish
from tandem.orchestrator.rounds.relay import (
    LARGEST_PROPOSAL,
    VERIFIER_BUSY_SECONDS,
    VERIFIER_LOST_SECONDS,
)
from tandem.orchestrator.rounds.step import Fallback
from tandem.protos.errors import (
    Busy,
    Internal,
    InvalidRequest,
    SessionMiss,
    StaleTurn,
    TandemError,
    TransportLost,
    Unavailable,
)
from tandem.protos.streams import Commit, Decoding, EncodedProposal, Flow, Proposal
from tandem.protos.types import NO_DRAFT_SHAPE, DraftShape, Method, SamplingParams
from tests.laws.peers import Job
from tests.laws.proposing import Drafter
from tests.laws.relayed import LENGTH, PROMPT, alone
from tests.laws.scene import GREEDY, LOCKSTEP, SESSION, SHAPE, Scene
from tests.laws.wires import OnStream


@pytest.mark.usefixtures("impatient")
def test_a_drafter_that_brings_nothing_is_sent_every_token_but_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def useless(drafter: Drafter, job: Job) -> None:
        job.call.answer(OnStream(job.stream, EncodedProposal(0, 9, Proposal(0))))

    monkeypatch.setattr(Drafter, "_proposal", useless)
    scene = Scene()
    assert scene.finish() == alone()
    (opening,), commits = scene.opened(scene.drafter), scene.sent_to(scene.drafter, Commit)
    sent = [*opening.context.tokens, *(token for _, commit in commits for token in commit.tokens)]
    assert sent == [*PROMPT, *alone()][: len(sent)]
    assert len(sent) > LENGTH / 4
    assert len(commits) < 0.8 * len(sent)
    assert sum(step.fallback is Fallback.BACKOFF for step in scene.relay.steps) > LENGTH / 4


@pytest.mark.parametrize("sampling", [GREEDY, LOCKSTEP], ids=["streams", "lockstep"])
@pytest.mark.parametrize("shape", [SHAPE, NO_DRAFT_SHAPE], ids=["drafted", "plain"])
def test_the_text_is_the_targets_own_and_both_sessions_are_closed(
    shape: DraftShape, sampling: SamplingParams
) -> None:
    scene = Scene(shape, sampling)
    assert scene.finish() == alone()
    assert scene.wait(lambda: not scene.verifier.held and not scene.drafter.held)
    assert (len(scene.relay.steps) < LENGTH) == bool(shape.levels)
    assert scene.relay.steps[-1].finish is Finish.LENGTH
    assert not any(step.finish for step in list(scene.relay.steps)[:-1])


def test_plain_decoding_opens_no_drafter_and_looking_up_is_the_verifiers() -> None:
    looking = DraftShape(8, 1, 8, Method.SUFFIX)
    for shape, looked in ((NO_DRAFT_SHAPE, False), (looking, True)):
        scene = Scene(shape, LOCKSTEP)
        assert scene.finish() == alone()
        assert not scene.sent[scene.drafter]
        (opening,) = scene.opened(scene.verifier)
        assert (opening.suffix_shape.levels > 0, opening.lockstep) == (looked, False)


def test_a_stop_token_cuts_the_commit_that_has_it() -> None:
    text = alone()
    stop = text[9]
    scene = Scene(stop=frozenset({stop}))
    assert scene.finish() == text[: text.index(stop) + 1]
    assert scene.relay.steps[-1].finish is Finish.STOP
    assert scene.generation.matched_token_id == stop


@pytest.mark.parametrize("sampling", [GREEDY, LOCKSTEP], ids=["streams", "lockstep"])
@pytest.mark.parametrize(
    "error",
    [
        SessionMiss("lost"),
        StaleTurn("old"),
        Busy("full"),
        Unavailable("down"),
        Internal("bug"),
        InvalidRequest.of("context.tokens", "too many"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_refusal_of_a_drafter_is_waited_for(
    error: TandemError, sampling: SamplingParams
) -> None:
    scene = Scene(sampling=sampling)
    scene.refuse(scene.drafter, error)
    assert scene.finish() == alone()
    assert len(scene.relay.steps) == LENGTH
    openings = len(scene.opened(scene.drafter))
    assert (openings > 1) == isinstance(error, SessionMiss | Busy | Unavailable), openings
    assert openings < 9, "it is asked ever less often"


@pytest.mark.parametrize("sampling", [GREEDY, LOCKSTEP], ids=["streams", "lockstep"])
def test_a_drafter_that_comes_back_proposals_again(sampling: SamplingParams) -> None:
    scene = Scene(sampling=sampling)
    assert scene.wait(lambda: scene.relay.drafter.number and scene.relay.drafter._answered)
    scene.drafter.restart()
    steps = len(scene.relay.steps)
    assert scene.wait(lambda: len(scene.relay.steps) >= steps + 3)
    assert not scene.relay.drafter.number
    assert scene.finish() == alone()
    assert len(scene.relay.steps) < LENGTH
    assert (scene.relay.drafter.openings, scene.relay.verifier.openings) == (2, 1)
    assert (scene.relay.drafter.switches, scene.relay.verifier.switches) == (1, 0)


def test_a_verifier_that_is_opened_anew_gets_proposals_of_a_new_drafting() -> None:
    scene = Scene()
    assert scene.wait(lambda: len(scene.relay.steps) >= 3)
    scene.verifier.evict()
    assert scene.finish() == alone()
    first, second = scene.opened(scene.drafter)
    known = list(PROMPT) + alone()
    assert list(second.context.tokens) == known[: len(second.context.tokens)]
    turns = [each.context.turn for each in scene.opened(scene.verifier)]
    assert sorted([*turns, first.context.turn, second.context.turn]) == [1, 2, 3, 4]
    streams = [stream for stream, _ in scene.sent_to(scene.verifier, Decoding)]
    proposals = scene.sent_to(scene.verifier, EncodedProposal)
    sources = [(stream, proposal.message.source) for stream, proposal in proposals]
    expected = set(zip(streams, (first.context.turn, second.context.turn), strict=True))
    assert set(sources) == expected


def test_a_proposal_that_no_drafter_of_ours_would_send_is_not_passed_on() -> None:
    scene = Scene()
    huge = EncodedProposal(3, LARGEST_PROPOSAL + 1, Proposal(3))
    scene.relay.drafter.receive(huge)
    assert scene.finish() == alone()
    assert huge not in [proposal for _, proposal in scene.sent_to(scene.verifier, EncodedProposal)]


@pytest.mark.parametrize(
    "error", [InvalidRequest.of("until", "is 0"), StaleTurn("taken over"), Internal("a bug")]
)
def test_a_verifier_that_refuses_ends_the_request_at_once(error: TandemError) -> None:
    scene = Scene()
    scene.refuse(scene.verifier, error)
    assert scene.wait(lambda: scene.relay.ended, 1)
    assert type(scene.relay.error) is type(error)
    assert len(scene.opened(scene.verifier)) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_verifier_that_is_away_is_waited_for_as_long_as_patience_lasts(lost: bool) -> None:
    scene = Scene()
    assert scene.wait(lambda: len(scene.relay.steps) >= 3)
    if lost:
        scene.verifier.up = False
        scene.links[0].lose()
    else:
        scene.refuse(scene.verifier, Unavailable("warming up"))
        scene.verifier.evict()
    began = scene.clock.time
    assert scene.wait(lambda: scene.relay.ended)
    assert isinstance(scene.relay.error, TransportLost if lost else Unavailable)
    assert VERIFIER_LOST_SECONDS <= scene.clock.time - began < VERIFIER_LOST_SECONDS + 6


def test_time_in_which_a_verifier_asks_to_wait_or_works_is_no_absence() -> None:
    scene = Scene()
    scene.refuse(scene.verifier, Busy("full", 5.0))
    scene.wait(lambda: False, 10 * VERIFIER_LOST_SECONDS)
    assert not scene.relay.ended
    scene.refuse(scene.verifier, None)
    assert scene.finish() == alone()
    assert (scene.relay.verifier.openings > 1, scene.relay.verifier.switches) == (True, 0)
    assert all(step.verifier_switches == 0 for step in scene.relay.steps)


def test_a_verifier_that_asks_to_wait_for_ever_is_given_up_at_last() -> None:
    scene = Scene()
    scene.refuse(scene.verifier, Busy("full", 5.0))
    assert scene.wait(lambda: scene.relay.ended, 2 * VERIFIER_BUSY_SECONDS)
    assert isinstance(scene.relay.error, Busy)
    assert scene.clock.time >= VERIFIER_BUSY_SECONDS


def test_a_verifier_pauses_for_a_reader_that_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.orchestrator.rounds.relay.PAUSE_AT", 8)
    monkeypatch.setattr("tandem.orchestrator.rounds.relay.RESUME_AT", 4)
    scene = Scene(NO_DRAFT_SHAPE)
    assert not scene.wait(lambda: scene.relay.ended)
    assert 8 < len(scene.relay.steps) < 12
    text: list[int] = []
    while not scene.relay.ended or scene.relay.steps:
        while scene.relay.steps:
            text += scene.relay.take().tokens
        scene.wait(lambda: bool(scene.relay.steps) or scene.relay.ended)
    assert text == alone()
    flows = [flow.paused for _, flow in scene.sent_to(scene.verifier, Flow)]
    assert flows[:2] == [True, False]


def test_whoever_ends_a_request_closes_its_sessions_wherever_it_is() -> None:
    scene = Scene()
    assert scene.wait(lambda: len(scene.relay.steps) >= 3)
    scene.relay.end()
    scene.relay.end()
    assert scene.wait(lambda: not scene.verifier.held and not scene.drafter.held)
    for service in (scene.verifier, scene.drafter):
        assert scene.closed(service) == [SESSION]
    scene.wait(lambda: False)
    assert len(scene.opened(scene.verifier)) == 1


def test_the_drafter_reads_the_text_when_there_is_a_first_token() -> None:
    scene = Scene()
    assert not scene.opened(scene.drafter)
    assert scene.wait(lambda: bool(scene.opened(scene.drafter)))
    (opening,) = scene.opened(scene.drafter)
    first = scene.relay.steps[0]
    assert len(opening.context.tokens) == len(PROMPT) + len(first.tokens)


def test_steps_name_the_drafter_whose_proposal_came_last_when_it_is_another() -> None:
    scene = Scene()
    scene.links[1].name = "a"
    assert scene.wait(lambda: any(len(step.tokens) > 1 for step in scene.relay.steps))
    scene.links[1].name = "b"
    assert scene.finish() == alone()
    steps = list(scene.relay.steps)
    assert [step.drafter for step in steps if step.drafter] == ["a", "b"]
    first = next(place for place, step in enumerate(steps) if step.drafter)
    assert all(len(step.tokens) == 1 for step in steps[:first])
