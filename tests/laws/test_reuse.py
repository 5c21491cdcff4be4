"""A new session begins with the cached part of its text in its own scope, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.cache.pages import PAGE
from tandem.engine.cache.session import JobEnded
from tandem.engine.cache.sessions import Sessions
from tandem.protos.errors import SessionMiss
from tandem.protos.types import Context, Draft, SamplingParams
from tests.laws.replica import LENGTH, TTL, Message, Replica, Tokens, tiny_pool
from tests.laws.verifying import verify

SAID: Tokens = tuple(range(100, 100 + PAGE + 20))
scopes = st.sampled_from((*[b""] * 6, b"x", b"y"))
forks = st.sampled_from((0, PAGE - 1, PAGE, PAGE + 1, PAGE + 7, len(SAID), len(SAID)))
tails = st.lists(st.integers(1, 2), max_size=3).map(tuple)
texts = st.builds(lambda fork, tail: SAID[:fork] + (tail or (3,)), forks, tails)


def common(one: Tokens, other: Tokens) -> int:
    """Return the number of leading tokens that two texts share."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(
    st.lists(st.tuples(scopes, texts, st.sampled_from(("open", "closed"))), max_size=5),
    scopes,
    texts,
)
def test_a_session_begins_with_the_longest_beginning_that_is_cached_in_its_scope(
    others: list[tuple[bytes, Tokens, str]], scope: bytes, text: Tokens
) -> None:
    """The session never begins with its whole text, because the newest token is always fed. From an
    open session others can share whole pages, from a closed one every token. The replica checks the
    rows.
    """
    replica = Replica(blocks=16, most=9)
    shares = [0]
    for number, (owner, said, _) in enumerate(others):
        replica.open(bytes([number]), said, owner)
    for number, (owner, said, state) in enumerate(others):
        if state == "closed":
            replica.close(bytes([number]))
        if owner == scope:
            whole = len(said) if state == "closed" else len(said) // PAGE * PAGE
            shares.append(common(said[:whole], text[:-1]))
    before = replica.sessions.counts.reused_tokens
    answer = replica.open(b"new", text, scope)
    assert answer.reused == max(shares)
    assert answer.held == len(text)
    assert replica.sessions.counts.reused_tokens - before == answer.reused
    replica.check_memory()


def test_of_a_session_at_work_only_what_is_committed_is_reused() -> None:
    """A token that the session is feeding now may be rejected, and its keys are not there yet."""
    replica = Replica()
    first = replica.open(b"a", SAID[: PAGE - 1])
    with replica.at_work(Context(b"a", 2, PAGE - 1, SAID[PAGE - 1 :], first.epoch)) as other:
        assert replica.open(b"b", SAID).reused == 0
        assert (other.length, other.active) == (PAGE - 1, True)


def test_what_was_only_proposed_is_nobodys() -> None:
    """A proposal may be right, but it was never part of the text; only its own caller may continue
    from it.
    """
    replica, proposals = Replica(), SAID[PAGE - 5 :]
    context = Context(b"a", 1, 0, SAID[: PAGE - 5])
    path = tuple(range(len(proposals)))
    held = replica.serve(Message(context, context.tokens), proposals, path)
    assert replica.open(b"b", (*SAID, 1)).reused == 0, "of an open session others find whole pages"
    later = Message(Context(b"a", 2, len(SAID), (7,), held.epoch), (*SAID, 7))
    assert replica.serve(later).held == len(SAID) + 1
    replica.close(b"b")
    assert replica.open(b"c", (*SAID, 7, 7)).reused == len(SAID), "now it is committed"


def test_of_a_session_that_ends_with_proposals_only_its_text_stays() -> None:
    replica, length = Replica(), PAGE - 5
    context = Context(b"a", 1, 0, SAID[:length])
    replica.serve(Message(context, context.tokens), SAID[length:], tuple(range(len(SAID) - length)))
    replica.close(b"a")
    assert replica.open(b"b", (*SAID, 1)).reused == length


def test_a_closed_session_that_comes_back_is_another_one() -> None:
    """A caller that still relies on the old session is told that it is gone."""
    replica = Replica()
    first = replica.open(b"a", SAID, b"x")
    replica.close(b"a")
    believer = Message(Context(b"a", 2, len(SAID), (1,), first.epoch), (*SAID, 1))
    with pytest.raises(SessionMiss):
        replica.serve(believer)
    again = replica.open(b"a", SAID, b"x", turn=3)
    assert (again.held, len(replica.sessions)) == (len(SAID), 1)
    assert again.epoch != first.epoch
    later = Message(Context(b"a", 4, len(SAID), (1,), first.epoch), (*SAID, 1))
    with pytest.raises(SessionMiss):
        replica.serve(later)
    good = Message(Context(b"a", 5, len(SAID), (1,), again.epoch), (*SAID, 1))
    assert replica.serve(good).held == len(SAID) + 1


@pytest.mark.parametrize("closes", [False, True])
def test_a_session_is_of_the_scope_in_which_it_was_opened_last(closes: bool) -> None:
    """The text of the new session is not visible in the scope of the old one."""
    replica = Replica(blocks=8, most=4)
    replica.open(b"a", SAID, b"x")
    if closes:
        replica.close(b"a")
    other = (*SAID[:PAGE], 1, 2, 3)
    assert replica.open(b"a", other, b"y", turn=2).reused == 0
    replica.close(b"a")
    assert replica.open(b"b", (*other, 4), b"x").reused == PAGE, "of what was said before"
    assert replica.open(b"c", (*other, 4), b"y").reused == len(other)


def test_a_call_that_fails_leaves_what_was_copied_and_nothing_else() -> None:
    replica = Replica()
    replica.open(b"a", SAID, b"x")
    replica.close(b"a")
    with replica.at_work(Context(b"b", 1, 0, (*SAID, 1, 2), client=b"x"), 4) as session:
        assert session.length == len(SAID)
    assert replica.held(session) == tuple(session.tokens) == SAID
    again = replica.open(b"b", (*SAID[:5], 1), b"x", turn=2)
    assert (again.held, again.reused) == (6, 5)


def test_a_verifier_feeds_only_what_is_not_cached_and_says_so() -> None:
    replica = Replica()
    replica.open(b"a", SAID, b"x")
    replica.close(b"a")
    context = Context(b"b", 1, 0, (*SAID, 1, 2), client=b"x")
    with torch.inference_mode():
        job = verify(replica.sessions, context, Draft((7, 8, 9), (-1, 0, -1)), SamplingParams())
        segment = next(job).ready()
        assert segment
        assert (segment.context, segment.tokens) == (len(SAID), (1, 2, 7, 8, 9))
        assert (segment.parents, segment.num_logits) == ((-1, 0, 1, 2, 1), 4)
        logits = torch.zeros(4, 10)
        logits[0, 7] = logits[1, 5] = 1.0
        with pytest.raises(StopIteration) as done:
            job.send(logits)
    commit = done.value.value
    assert (commit.start, commit.tokens, commit.accepted) == (len(SAID) + 2, (7, 5), 1)
    assert commit.reused == len(SAID)


@pytest.mark.parametrize("client", [b"", b"x"])
def test_a_call_that_opens_a_session_again_finds_what_it_said_before(client: bytes) -> None:
    """A prompt that takes longer than its caller waits is not read anew each time."""
    sessions = Sessions(tiny_pool(), LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    first = Context(b"s", 1, 0, (1, 2, 3, 4), client=client)
    with sessions.acquire(first, 0) as held:
        sessions.keep(held, first, ())
    with sessions.acquire(replace(first, turn=2), 0) as held:
        assert list(held.tokens) == [1, 2, 3], "the newest token is always fed"
    again = Context(b"s", 3, 0, (1, 2, 9, 9), client=client)
    with sessions.acquire(again, 0) as held:
        assert list(held.tokens) == [1, 2]
        assert list(held.committed(again)) == [1, 2, 9, 9]
    with sessions.acquire(replace(again, turn=4, client=b"other"), 0) as held:
        assert held.length == 0


def test_what_was_fed_of_a_prompt_that_ends_early_serves_the_next_session() -> None:
    sessions = Sessions(tiny_pool(), LENGTH, 2, count(1).__next__, TTL, lambda: 0.0)
    prompt, fed = tuple(range(PAGE + 9)), PAGE + 4
    with pytest.raises(JobEnded), sessions.acquire(Context(b"s", 1, 0, prompt, client=b"x"), 0):
        raise JobEnded(fed)
    sessions.close(b"s")
    with sessions.acquire(Context(b"t", 1, 0, prompt, client=b"x"), 0) as held:
        assert list(held.tokens) == list(prompt[:fed])
