"""Several sources of proposals side by side: each has its own trust and scope."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from tandem.protos.streams import Decoding, Proposal
from tandem.protos.types import NO_DRAFT_SHAPE, Context, DraftShape, Rule, SamplingParams
from tandem.verifier_service.answers import RecentAnswers
from tandem.verifier_service.proposals import Proposals
from tandem.verifier_service.proposed_node import Source
from tandem.verifier_service.sources import Sources, SuffixSources

SHAPE = DraftShape(8, 4, 16)
PROMPT, ANSWER = (1, 2, 3), (4, 5, 6, 7)


def looking(
    answers: RecentAnswers, scope: bytes, text: tuple[int, ...] = PROMPT, **asked: object
) -> SuffixSources:
    """Return the recent answers that a session of a scope looks its newest tokens up in."""
    settings = {"suffix_shape": SHAPE} | asked
    opening = Decoding(Context(b"s", 1, 0, text), SamplingParams(), 99, **settings)  # type: ignore[arg-type]
    return SuffixSources(opening, text, answers, scope)


def proposed(
    sources: SuffixSources, known: Collection[Source] = ()
) -> dict[Source, tuple[int, ...]]:
    """Return the tokens that each source proposes now."""
    trusts = Sources.of_all().trusts
    return {source: proposal.tokens for source, proposal in sources.proposals(known, trusts, 0.0)}


def answered(scope: bytes) -> RecentAnswers:
    """Return recent answers that contain one of a session in this scope."""
    answers = RecentAnswers(100)
    session = looking(answers, scope)
    session.extend(ANSWER)
    session.remember()
    return answers


def test_an_answer_is_found_from_its_first_token_on_in_its_own_scope_and_in_no_other() -> None:
    answers = answered(b"a")
    assert proposed(looking(answers, b"a")) == {Source.ANSWERS: ANSWER}
    for scope in (b"", b"b", b"aa"):
        assert proposed(looking(answers, scope)) == {}
    assert proposed(looking(answered(b""), b"a")) == {}


def test_a_session_that_wants_no_drafts_neither_looks_nor_is_remembered() -> None:
    answers = answered(b"a")
    known = len(answers)
    plain = looking(answers, b"a", suffix_shape=NO_DRAFT_SHAPE)
    assert proposed(plain) == {}
    plain.extend(ANSWER)
    plain.remember()
    looking(answers, b"a").remember()  # the session has not answered
    assert len(answers) == known


@pytest.mark.parametrize("rule", [Rule.REJECT, Rule.TOP1])
def test_a_text_that_depends_on_its_drafts_does_not_depend_on_other_answers(rule: Rule) -> None:
    answers, context = answered(b"a"), Context(b"s", 1, 0, PROMPT)
    opening = Decoding(context, SamplingParams(rule=rule), 99, suffix_shape=SHAPE)
    assert proposed(SuffixSources(opening, PROMPT, answers, b"a")) == {}


def test_a_prediction_the_text_and_answers_are_looked_up_beside_each_other() -> None:
    text = (2, 3, 9, *PROMPT)
    session = looking(answered(b"a"), b"a", text, known=(*PROMPT, 8))
    assert proposed(session) == {
        Source.TEXT: (9, *PROMPT, 9, 1, 2, 3)[: SHAPE.levels],
        Source.PREDICTION: (8,),
        Source.ANSWERS: ANSWER,
    }
    assert proposed(session) == {}, "once for each text"


def test_a_source_that_is_known_to_have_a_proposal_is_asked_again_half_its_levels_later() -> None:
    circle = (1, 2, 3)
    session = looking(RecentAnswers(0), b"", circle * 2)
    assert len(proposed(session)[Source.TEXT]) == SHAPE.levels
    for length in range(1, SHAPE.levels // 2 + 1):
        session.extend(circle[(length - 1) % 3 :][:1])
        again = proposed(session, {Source.TEXT})
        assert bool(again) == (length == SHAPE.levels // 2)


def test_sources_that_claim_different_tokens_share_and_the_trusted_one_leads() -> None:
    proposals = Proposals(5, 99)
    proposals.add(Proposal(5, (1,), (0,), (math.log(0.9),)))
    proposals.add(Proposal(5, (2,), (0,), (math.log(0.9),)), math.log(0.5), Source.TEXT)
    assert list(proposals.chances()) == pytest.approx([0.9 / 1.35, 0.45 / 1.35])
    proposals.add(Proposal(5, (2,), (0,), (math.log(0.2),)), 0.0, Source.ANSWERS)
    assert list(proposals.chances()) == pytest.approx([0.9 / 1.35, 0.45 / 1.35]), "not the surest"


def test_proposals_of_another_source_leave_the_numbers_of_the_drafters_nodes_alone() -> None:
    proposals = Proposals(5, 99)
    proposals.add(Proposal(5, (1,), (0,), (0.0,), source=7))
    proposals.add(Proposal(5, (9, 9), (0, 1), (-1.0, -1.0)), 0.0, Source.TEXT)
    proposals.add(Proposal(5, (2,), (1,), (0.0,), first=2, source=7))
    list(proposals.chances())
    assert proposals.draft(2)[0].tokens == (1, 2)


def test_each_source_learns_from_what_it_claimed_itself() -> None:
    sources, proposals = Sources.of_all().begun(), Proposals(5, 99)
    for _ in range(200):
        proposals = Proposals(5, 99)
        proposals.add(Proposal(5, (1,), (0,), (math.log(0.8),)))
        proposals.add(Proposal(5, (2,), (0,), (math.log(0.8),)), 0.0, Source.TEXT)
        proposals.add(Proposal(5, (1,), (0,), (math.log(0.8),)), 0.0, Source.ANSWERS)
        rows = sum(1 for _ in proposals.chances())
        draft, _ = proposals.draft(rows)
        accepted = [draft.tokens.index(1)]
        assert proposals.found(accepted) == (1, 0), "one node that no drafter sent"
        sources.observe(proposals, draft, accepted)
    trusts = {source: math.exp(trust.log) for source, trust in sources.trusts.items()}
    assert trusts[Source.DRAFTER] == trusts[Source.ANSWERS] > 1 > 0.1 > trusts[Source.TEXT]
