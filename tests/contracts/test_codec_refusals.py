"""A message that is not a valid value is refused, and the error names the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tandem.protos import tree
from tandem.protos.errors import InvalidRequest
from tandem.protos.streams import Proposal
from tandem.protos.types import Distribution
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import decode_proposal, decode_shape, draft_of
from tandem.protos.wire.sampling import decode_sampling
from tandem.v1 import common_pb2, drafter_pb2, verifier_pb2


def context(**fields: Any) -> common_pb2.Context:
    """Return a valid context with these fields changed."""
    return common_pb2.Context(**{"session_id": bytes(16), "turn": 1, "tokens": [1], **fields})


def proposal(tokens: Sequence[int], parents: Sequence[int], **fields: Any) -> common_pb2.Proposal:
    """Return a proposal of nodes with these parents."""
    return common_pb2.Proposal(tokens=tokens, parents=parents, **fields)


def drawn(*weights: dict[int, int]) -> list[common_pb2.Distribution]:
    """Return the distributions that the children of the committed tokens, of node 0, of node 1, ...
    were drawn from.
    """
    return [common_pb2.Distribution(tokens=each, weights=each.values()) for each in weights]


REFUSED = [
    (
        codec.decode_context,
        context(session_id=bytes(15)),
        {"context.session_id": "has 15 bytes, not 16"},
    ),
    (codec.decode_context, context(tokens=[]), {"context.tokens": "is empty"}),
    (
        codec.decode_context,
        common_pb2.Context(),
        {"context.session_id": "has 0 bytes, not 16", "context.tokens": "is empty"},
    ),
    (
        codec.decode_context,
        context(client=bytes(33)),
        {"context.client": "has 33 bytes, above 32"},
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(temperature=-0.5, top_p=2),
        {
            "sampling.temperature": "is -0.5, below 0 or not finite",
            "sampling.top_p": "is 2, not above 0 and at most 1",
        },
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(temperature=math.inf, top_p=math.nan),
        {
            "sampling.temperature": "is inf, below 0 or not finite",
            "sampling.top_p": "is nan, not above 0 and at most 1",
        },
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(min_p=2, frequency_penalty=-3, logit_bias={8: 200}),
        {
            "sampling.min_p": "is 2, not in 0..1",
            "sampling.frequency_penalty": "is -3, not in -2..2",
            "sampling.logit_bias[8]": "is 200, not in -100..100",
        },
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(logprobs=21),
        {"logprobs": "is 21, above 20"},
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(rule=9),  # type: ignore[arg-type]
        {"sampling.rule": "is 9, not one of MATCH, REJECT, TOP1"},
    ),
]
SHAPES = [
    ({"levels": 33}, "levels", "is 33, above 32"),
    ({"levels": 32, "nodes": 65}, "nodes", "is 65, above 64"),
    ({"levels": 32, "branches": 65}, "branches", "is 65, above 64"),
    ({"confidence": -1}, "confidence", "is -1, below 0 or not finite"),
    ({"confidence": math.inf}, "confidence", "is inf, below 0 or not finite"),
    ({"confidence": math.nan}, "confidence", "is nan, below 0 or not finite"),
    ({"method": 9}, "method", "is 9, not one of TREE, MEDUSA_LITE, SUFFIX"),
    ({"schedule": 9}, "schedule", "is 9, not one of GOODPUT, CONSTANT, HEURISTIC"),
]
NO_CHANCE = "must have a distinct token of weight above 0 for each child of node -1"
NO_WEIGHTS = "has an entry without exactly one weight for each of its tokens"
PROPOSALS = [
    (proposal([1] * 65, [0] * 65), "tokens", "has 65 nodes, above 64"),
    (proposal([1, 2], [0]), "parents", "has 1 entries for 2 tokens"),
    (proposal([1, 2], [0, 1], scores=bytes(3)), "scores", "has 3 entries for 2 tokens"),
    (proposal([1, 2], [0, 3]), "parents", "point before the first node"),
    (proposal([1, 2], [9, 1], first=8), "parents", "point before the first node"),
    (
        proposal([1, 2], [3, 1], first=9, distributions=drawn({1: 1}, {2: 1}, {})),
        "parents",
        "refer to a node of another proposal",
    ),
    (proposal([1], [0], distributions=drawn({})), "distributions", "has 1 entries for 1 tokens"),
    (
        proposal([1], [0], distributions=drawn(dict.fromkeys(range(257), 1), {})),
        "distributions",
        "has an entry of 257 tokens, above 256",
    ),
    (proposal([1], [0], distributions=drawn({}, {})), "distributions", NO_CHANCE),
    (proposal([1], [0], distributions=drawn({1: 0, 2: 1}, {})), "distributions", NO_CHANCE),
    (
        proposal([4, 4], [0, 0], distributions=drawn({4: 3, 5: 1}, {}, {})),
        "distributions",
        NO_CHANCE,
    ),
    (
        proposal([1], [0], distributions=[*drawn({1: 3}), common_pb2.Distribution(tokens=[2])]),
        "distributions",
        NO_WEIGHTS,
    ),
    (
        proposal(
            [1],
            [0],
            distributions=[common_pb2.Distribution(tokens=[1, 1], weights=[1, 2]), *drawn({})],
        ),
        "distributions",
        NO_WEIGHTS,
    ),
]
NO_SESSION = {"context.session_id": "has 0 bytes, not 16", "context.tokens": "is empty"}
HOT = common_pb2.SamplingParams(temperature=-1)
DEEP = common_pb2.DraftShape(levels=99)
TOO_HOT = {"sampling.temperature": "is -1, below 0 or not finite"}
TOO_DEEP = {"shape.levels": "is 99, above 32"}
AHEAD = verifier_pb2.PromptLogprobs(first=1, until=2)
MANY = verifier_pb2.PromptLogprobs(first=1, until=1, top=21)
AT_ONCE = verifier_pb2.PromptLogprobs(first=0, until=1)
OPENINGS = [
    *(
        (codec.decode_decoding, verifier_pb2.Decoding(context=given, prompt_logprobs=each), found)
        for given, each, found in (
            (context(), AHEAD, {"prompt_logprobs": "cover positions 1..2, not within 1..1"}),
            (context(), AT_ONCE, {"prompt_logprobs": "cover positions 0..1, not within 1..1"}),
            (context(), MANY, {"prompt_logprobs.top": "is 21, above 20"}),
            (context(base=1), AHEAD, {"prompt_logprobs": "need context.base 0 and all tokens"}),
        )
    ),
    (codec.decode_decoding, verifier_pb2.Decoding(), NO_SESSION),
    (codec.decode_decoding, verifier_pb2.Decoding(context=context(), sampling=HOT), TOO_HOT),
    (codec.decode_decoding, verifier_pb2.Decoding(context=context(), suffix_shape=DEEP), TOO_DEEP),
    (codec.decode_drafting, drafter_pb2.Drafting(), NO_SESSION),
    (codec.decode_drafting, drafter_pb2.Drafting(context=context(), sampling=HOT), TOO_HOT),
    (codec.decode_drafting, drafter_pb2.Drafting(context=context(), shape=DEEP), TOO_DEEP),
]


def refusal(decode: Callable[[Any], Any], value: Any) -> dict[str, str]:
    """Return the problem of every field that is refused."""
    with pytest.raises(InvalidRequest) as refused:
        decode(value)
    return {violation.field: violation.problem for violation in refused.value.violations}


ALL: list[tuple[Callable[[Any], Any], Message, dict[str, str]]] = [
    *REFUSED,
    *OPENINGS,
    *((decode_shape, common_pb2.DraftShape(**each), {f"shape.{at}": p}) for each, at, p in SHAPES),
    *((decode_proposal, message, {f"draft.{at}": problem}) for message, at, problem in PROPOSALS),
]


@pytest.mark.parametrize(("decode", "message", "problems"), ALL)
def test_what_cannot_be_a_value_is_refused_by_field(
    decode: Callable[[Any], Any], message: Message, problems: dict[str, str]
) -> None:
    assert refusal(decode, message) == problems


def nodes(parents: tuple[int, ...]) -> Proposal:
    """Return nodes 6, 7, ...; earlier nodes came in other proposals."""
    return Proposal(behind=9, tokens=(1,) * len(parents), parents=parents, first=6)


@pytest.mark.parametrize("parents", [(4, 0), (0, 3), (0, 6, 2)])
def test_a_proposal_that_continues_another_is_no_whole_draft(parents: tuple[int, ...]) -> None:
    (problem,) = refusal(draft_of, nodes(parents)).items()
    assert problem == ("draft.parents", "refer to a node of another proposal")


def test_a_whole_draft_may_be_numbered_from_anywhere() -> None:
    assert draft_of(nodes((0, 6, 6, 0))).parents == (-1, 0, 0, -1)


def test_what_a_draft_was_not_drawn_from_is_refused() -> None:
    other = (Distribution((2,), (1,)), Distribution())
    made_up = Proposal(behind=9, tokens=(1,), parents=(0,), scores=(0.0,), distributions=other)
    assert refusal(draft_of, made_up) == {"draft.distributions": NO_CHANCE}


@given(st.binary(max_size=200), st.integers(0, 1 << 20))
def test_no_bytes_make_a_draft_that_is_no_tree(content: bytes, first: int) -> None:
    """Whoever sends it, a decoded proposal has each node's parent before the node, and a whole
    draft is a tree.
    """
    tokens, parents = list(content[::2]), list(content[1::2])
    try:
        proposal = decode_proposal(common_pb2.Proposal(first=first, tokens=tokens, parents=parents))
    except InvalidRequest:
        return
    for number, parent in enumerate(proposal.parents, proposal.first):
        assert 0 <= parent < number
    try:
        draft = draft_of(proposal)
    except InvalidRequest:
        return
    assert len(draft.tokens) == len(draft.parents)
    assert tree.problem(draft.parents) is None
