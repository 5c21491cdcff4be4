"""What is encoded is decoded as it was; what cannot be a value is refused by the field's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.generation import Finish
from protos import codec, tree, types
from protos.drafting import decode_draft, decode_shape, encode_draft, encode_shape
from protos.errors import InvalidRequest
from protos.sampling import decode_sampling, encode_sampling
from protos.tandem.v1 import common_pb2, orchestrator_pb2

token = st.integers(0, (1 << 32) - 1)
small = st.integers(0, 1 << 20)


def sampled(draft: types.Draft) -> dict[str, Any]:
    """The draft with siblings that differ, and something that they may have been drawn from."""
    found = tuple(range(len(draft)))
    behind = [tuple(found[node] for node in nodes) for nodes in tree.children(draft.parents)]
    weights = tuple(types.Distribution((*each, 1000), (1,) * len(each) + (7,)) for each in behind)
    return {"tokens": found, "distributions": weights}


tokens = st.lists(token, max_size=12).map(tuple)
client = st.binary(max_size=16)
ids = st.binary(min_size=codec.SESSION_ID_BYTES, max_size=codec.SESSION_ID_BYTES)
contexts = st.builds(types.Context, ids, small, small, tokens.filter(len), token, client)
samplings = st.builds(
    types.SamplingParams,
    temperature=st.floats(0.0009765625, 100, width=32),
    top_k=small,
    top_p=st.floats(0.0009765625, 1, width=32),
    seed=st.integers(0, (1 << 64) - 1),
    min_p=st.floats(0, 1, width=32),
    repetition_penalty=st.floats(0.5, 2, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    logit_bias=st.dictionaries(token, st.floats(-100, 100, width=32), max_size=5).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    rule=st.sampled_from(types.Rule),
    logprobs=st.none() | st.integers(0, types.MAX_LOGPROBS),
) | st.just(types.SamplingParams())
with_history = st.builds(
    replace,
    samplings,
    presence_penalty=st.just(0.5),
    prompt_length=small,
    min_new_tokens=st.integers(1, 100),
    end_tokens=tokens,
)
levels, nodes = st.integers(0, types.MAX_LEVELS), st.integers(0, types.MAX_NODES)
bound = st.floats(0, 4, width=32)
methods = st.sampled_from(types.Method)
shapes = st.builds(
    types.DraftShape, levels, nodes, nodes, methods, bound, bound, bound, bound.filter(bool)
)
drafts = st.integers(0, types.MAX_NODES).flatmap(
    lambda size: st.builds(
        types.Draft,
        st.tuples(*[token] * size),
        st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
        | st.just(tuple(range(-1, size - 1))),
    )
)
drawn = drafts.map(lambda draft: replace(draft, **sampled(draft)))
chance = st.floats(-50, 0, width=32)
told = st.lists(
    st.builds(
        types.TokenLogprobs, chance, st.lists(st.tuples(token, chance), max_size=3).map(tuple)
    ),
    max_size=4,
).map(tuple)
words = st.text(st.characters(codec="utf-8"), max_size=12)
models = st.builds(
    types.ModelDescription, words, words, token, token, tokens, words, words, small, words, bound
)
PAIRS = [
    (contexts, codec.encode_context, codec.decode_context),
    (samplings, encode_sampling, decode_sampling),
    (with_history, encode_sampling, decode_sampling),
    (shapes, encode_shape, decode_shape),
    (drafts, encode_draft, decode_draft),
    (drawn, encode_draft, decode_draft),
    (
        st.builds(types.Proposal, drafts, small, token, bound, bound),
        codec.encode_proposal,
        codec.decode_proposal,
    ),
    (
        st.builds(types.Verdict, tokens, token, small, token, small, told, bound),
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
    """Over real bytes, and what does not count for equality as well."""
    value = data.draw(values)
    message = encode(value)
    arrived = decode(type(message).FromString(message.SerializeToString()))
    assert asdict(arrived) == asdict(value)


@pytest.mark.parametrize(
    ("kind", "wire", "prefix"),
    [
        (types.Rule, orchestrator_pb2.AcceptanceRule, "ACCEPTANCE_RULE_"),
        (types.Method, orchestrator_pb2.DraftMethod, "DRAFT_METHOD_"),
        (types.Schedule, orchestrator_pb2.DraftSchedule, "DRAFT_SCHEDULE_"),
        (Finish, orchestrator_pb2.FinishReason, "FINISH_REASON_"),
    ],
)
def test_choices_have_the_names_and_numbers_of_the_wire(
    kind: type[Enum], wire: Any, prefix: str
) -> None:
    numbers = {name.removeprefix(prefix): number for name, number in wire.items()}
    assert {each.name: each.value for each in kind}.items() <= numbers.items()


@given(tokens)
def test_a_chain_sends_no_parents(path: tuple[int, ...]) -> None:
    assert not encode_draft(types.Draft.chain(path)).parents


@given(drafts)
def test_a_tree_sends_its_parents_counted_from_the_root(draft: types.Draft) -> None:
    sent = encode_draft(draft).parents
    assert [parent - 1 for parent in sent] == (list(draft.parents) if sent else [])
    assert bool(sent) == (draft != types.Draft.chain(draft.tokens))


@given(st.integers(0, 1 << 32))
def test_greedy_sends_nothing(seed: int) -> None:
    greedy = types.SamplingParams(temperature=0.0, top_k=5, top_p=0.5, seed=seed)
    assert encode_sampling(greedy).ByteSize() == 0
    assert decode_sampling(common_pb2.SamplingParams()) == types.SamplingParams()


@given(samplings)
def test_a_nucleus_of_everything_is_not_sent(sampling: types.SamplingParams) -> None:
    assert (encode_sampling(sampling).top_p == 0) == (sampling.top_p == 1 or sampling.greedy)


@given(st.binary(max_size=200))
def test_no_bytes_make_a_draft_that_is_no_tree(content: bytes) -> None:
    """Whoever sends it: what decodes is a tree."""
    message = common_pb2.Draft(tokens=list(content[::2]), parents=list(content[1::2]))
    try:
        draft = decode_draft(message)
    except InvalidRequest:
        return
    assert len(draft.tokens) == len(draft.parents)
    assert all(-1 <= parent < node for node, parent in enumerate(draft.parents))
