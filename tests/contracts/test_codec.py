"""What is encoded is decoded as it was; what cannot be a value is refused by the field's name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from protos import codec, types
from protos.errors import InvalidRequest
from protos.tandem.v1 import common_pb2, drafter_pb2

token = st.integers(0, (1 << 32) - 1)
small = st.integers(0, 1 << 20)
tokens = st.lists(token, max_size=12).map(tuple)
ids = st.binary(min_size=codec.SESSION_ID_BYTES, max_size=codec.SESSION_ID_BYTES)
contexts = st.builds(types.Context, ids, small, small, tokens.filter(len), token)
samplings = st.builds(
    types.SamplingParams,
    temperature=st.floats(0.0009765625, 100, width=32),
    top_k=small,
    top_p=st.floats(0.0009765625, 1, width=32),
    seed=st.integers(0, (1 << 64) - 1),
) | st.just(types.SamplingParams())
levels, nodes = st.integers(0, types.MAX_LEVELS), st.integers(0, types.MAX_NODES)
shapes = st.builds(types.DraftShape, levels, nodes, nodes)
drafts = st.integers(0, types.MAX_NODES).flatmap(
    lambda size: st.builds(
        types.Draft,
        st.tuples(*[token] * size),
        st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
        | st.just(tuple(range(-1, size - 1))),
    )
)
words = st.text(st.characters(codec="utf-8"), max_size=12)
models = st.builds(
    types.ModelDescription, words, words, token, token, tokens, words, words, small, small
)
PAIRS = [
    (contexts, codec.encode_context, codec.decode_context),
    (samplings, codec.encode_sampling, codec.decode_sampling),
    (shapes, codec.encode_shape, codec.decode_shape),
    (drafts, codec.encode_draft, codec.decode_draft),
    (st.builds(types.Proposal, drafts, small, token), codec.encode_proposal, codec.decode_proposal),
    (
        st.builds(types.Verdict, tokens, token, small, token),
        codec.encode_verdict,
        codec.decode_verdict,
    ),
    (models, codec.encode_model, codec.decode_model),
]


@pytest.mark.parametrize(
    ("values", "encode", "decode"), PAIRS, ids=lambda part: getattr(part, "__name__", "")
)
@given(data=st.data())
def test_what_is_sent_arrives(
    values: st.SearchStrategy[Any],
    encode: Callable[[Any], Message],
    decode: Callable[[Any], Any],
    data: st.DataObject,
) -> None:
    """Over real bytes."""
    value = data.draw(values)
    message = encode(value)
    assert decode(type(message).FromString(message.SerializeToString())) == value


@given(tokens)
def test_a_chain_sends_no_parents(path: tuple[int, ...]) -> None:
    assert not codec.encode_draft(types.Draft.chain(path)).parents


@given(drafts)
def test_a_tree_sends_its_parents_counted_from_the_root(draft: types.Draft) -> None:
    sent = codec.encode_draft(draft).parents
    assert [parent - 1 for parent in sent] == (list(draft.parents) if sent else [])
    assert bool(sent) == (draft != types.Draft.chain(draft.tokens))


@given(st.integers(0, 1 << 32))
def test_greedy_sends_nothing(seed: int) -> None:
    greedy = types.SamplingParams(temperature=0.0, top_k=5, top_p=0.5, seed=seed)
    assert codec.encode_sampling(greedy).ByteSize() == 0
    assert codec.decode_sampling(common_pb2.SamplingParams()) == types.SamplingParams()


@given(samplings)
def test_a_nucleus_of_everything_is_not_sent(sampling: types.SamplingParams) -> None:
    assert (codec.encode_sampling(sampling).top_p == 0) == (sampling.top_p == 1 or sampling.greedy)


def context(**fields: Any) -> common_pb2.Context:
    """A good context but for these fields."""
    return common_pb2.Context(**{"session_id": bytes(16), "turn": 1, "tokens": [1], **fields})


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
        codec.decode_sampling,
        common_pb2.SamplingParams(temperature=-0.5, top_p=2),
        {
            "sampling.temperature": "is -0.5, below 0 or not finite",
            "sampling.top_p": "is 2.0, not in 0..1",
        },
    ),
    (codec.decode_shape, common_pb2.DraftShape(levels=33), {"shape.levels": "is 33, above 32"}),
    (
        codec.decode_shape,
        common_pb2.DraftShape(levels=32, nodes=65),
        {"shape.nodes": "is 65, above 64"},
    ),
    (
        codec.decode_shape,
        common_pb2.DraftShape(levels=32, branches=65),
        {"shape.branches": "is 65, above 64"},
    ),
    (
        codec.decode_draft,
        common_pb2.Draft(tokens=[1] * 65),
        {"draft.tokens": "has 65 nodes, above 64"},
    ),
    (
        codec.decode_draft,
        common_pb2.Draft(tokens=[1, 2], parents=[0]),
        {"draft.parents": "has 1 entries for 2 tokens"},
    ),
    (
        codec.decode_draft,
        common_pb2.Draft(parents=[0]),
        {"draft.parents": "has 1 entries for 0 tokens"},
    ),
    (
        codec.decode_draft,
        common_pb2.Draft(tokens=[1, 2], parents=[0, 2]),
        {"draft.parents": "of node 1 is 1, not in -1..0"},
    ),
    (
        codec.decode_proposal,
        drafter_pb2.ProposeResponse(draft=common_pb2.Draft(tokens=[1], parents=[1])),
        {"draft.parents": "of node 0 is 0, not in -1..-1"},
    ),
]


@pytest.mark.parametrize(("decode", "message", "problems"), REFUSED)
def test_what_cannot_be_a_value_is_refused_by_field(
    decode: Callable[[Any], Any], message: Message, problems: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(message)
    assert {
        violation.field: violation.problem for violation in refused.value.violations
    } == problems


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidRequest) as refused:
        codec.decode_sampling(common_pb2.SamplingParams(temperature=value, top_p=value))
    assert [violation.field for violation in refused.value.violations] == [
        "sampling.temperature",
        "sampling.top_p",
    ]


@given(st.binary(max_size=200))
def test_no_bytes_make_a_draft_that_is_no_tree(content: bytes) -> None:
    """Whoever sends it: what decodes is a tree."""
    message = common_pb2.Draft(tokens=list(content[::2]), parents=list(content[1::2]))
    try:
        draft = codec.decode_draft(message)
    except InvalidRequest:
        return
    assert len(draft.tokens) == len(draft.parents)
    assert all(-1 <= parent < node for node, parent in enumerate(draft.parents))
