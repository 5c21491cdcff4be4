"""The size of commits and proposals on the wire: no text, no probabilities, a few bytes per
token.
"""

from __future__ import annotations

import random

import pytest

from tandem.protos.streams import Commit, Proposal
from tandem.protos.wire.codec import encode_commit
from tandem.protos.wire.drafting import encode_proposal
from tandem.v1 import drafter_pb2, verifier_pb2

VOCABULARY = 128_000
# most bytes of a commit with figures, of one without, and of a proposal of NODES nodes
COMMIT, REPORT, PROPOSAL = 40, 24, 200
TOKENS, NODES = 4, 32
ONCE = 20  # bytes of a message beside its commits and proposals
CONDITIONS = 18  # bytes that are sent twice a second
STREAMS, POSITIONS = 1 << 20, 1 << 17


def some_commit(rng: random.Random) -> Commit:
    """Draw a commit with everything that a session's step reports."""
    tokens = tuple(rng.randrange(VOCABULARY) for _ in range(TOKENS))
    late, unused = rng.randrange(64), rng.randrange(64)
    start, expected = rng.randrange(POSITIONS), rng.uniform(1, 4)
    return Commit(start, tokens, NODES, TOKENS - 1, expected=expected, late=late, unused=unused)


def some_proposal(rng: random.Random) -> Proposal:
    """Draw the newest nodes of a tree that has grown for long; their parents are nodes a window
    back, or the committed tokens.
    """
    first = rng.randrange(1, 1 << 14)
    parents = tuple(
        max(0, first + place - rng.randint(1, 2 * NODES)) if rng.random() < 0.9 else 0
        for place in range(NODES)
    )
    tokens = tuple(rng.randrange(VOCABULARY) for _ in range(NODES))
    scores = tuple(-rng.expovariate(1.0) for _ in range(NODES))
    behind, turn = rng.randrange(POSITIONS), rng.randrange(1, 100)
    return Proposal(behind, tokens, parents, scores, first, turn)


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)


def stream(rng: random.Random) -> int:
    return rng.randrange(1, STREAMS)


def test_commits_and_proposals_fit_their_budgets(rng: random.Random) -> None:
    """A drafter gets commits without figures."""
    for _ in range(1000):
        commit = some_commit(rng)
        assert encode_commit(stream(rng), commit).ByteSize() <= COMMIT
        assert encode_commit(stream(rng), Commit(commit.start, commit.tokens)).ByteSize() <= REPORT
        assert encode_proposal(stream(rng), some_proposal(rng)).ByteSize() <= PROPOSAL


def test_a_stream_that_says_nothing_new_costs_a_few_bytes() -> None:
    for message in (
        verifier_pb2.DecodeRequest(sent=1e6),
        verifier_pb2.DecodeResponse(sent=1e6, price=0.1, token_seconds=0.1),
        drafter_pb2.ProposeRequest(sent=1e6),
        drafter_pb2.ProposeResponse(sent=1e6),
    ):
        assert message.ByteSize() <= ONCE
    conditions = drafter_pb2.Conditions(price=0.1, token_seconds=0.1, delay=0.1)
    report = drafter_pb2.ProposeRequest(sent=1e6, conditions=conditions)
    assert report.ByteSize() <= ONCE + CONDITIONS
