"""Decoding an encoded value gives the same value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.orchestrator.rounds.generation import Finish
from tandem.protos import streams, tree, types
from tandem.protos.generation import GenerationDefaults
from tandem.protos.grammar import Grammar, GrammarKind
from tandem.protos.wire import codec
from tandem.protos.wire.drafting import (
    SCORE_STEPS,
    decode_proposal,
    decode_shape,
    draft_of,
    encode_proposal,
    encode_shape,
    proposal_of,
)
from tandem.protos.wire.sampling import decode_sampling, encode_sampling
from tandem.v1 import common_pb2, orchestrator_pb2

STREAM, EXAMPLES = 7, 30
token = st.integers(0, (1 << 32) - 1)
small = st.integers(0, 1 << 20)


def sampled(draft: types.Draft) -> dict[str, Any]:
    """Return the draft with differing siblings, and a distribution that they may come from."""
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
    suppress_tokens=tokens,
) | st.just(types.SamplingParams())
with_history = st.builds(
    replace,
    samplings,
    presence_penalty=st.just(0.5),
    prompt_length=small,
    min_new_tokens=st.integers(1, 100),
    end_tokens=tokens,
    begin_suppress_tokens=tokens,
    grammar=st.none() | st.builds(Grammar, st.sampled_from(GrammarKind), st.text(max_size=9)),
)
levels, nodes = st.integers(1, types.MAX_LEVELS), st.integers(0, types.MAX_NODES)
bound = st.floats(0, 4, width=32)
methods, schedules = st.sampled_from(types.Method), st.sampled_from(types.Schedule)
ahead = st.builds(types.DraftShape, levels, nodes, nodes, methods, bound, schedules)
shapes, lookups = (ahead | st.just(each) for each in (types.NO_DRAFT_SHAPE, types.DraftShape(0, 0)))
drafts = st.integers(0, types.MAX_NODES).flatmap(
    lambda size: st.builds(
        types.Draft,
        st.tuples(*[token] * size),
        st.tuples(*(st.integers(-1, node - 1) for node in range(size)))
        | st.just(tuple(range(-1, size - 1))),
    )
)
drawn = drafts.map(lambda draft: replace(draft, **sampled(draft)))
whole = st.builds(proposal_of, drafts | drawn, small)


@st.composite
def grown(draw: st.DrawFn) -> streams.Proposal:
    """Draw the newest nodes of a tree, whose parents may have been sent before."""
    size, first = draw(st.integers(0, types.MAX_NODES)), draw(st.integers(1, 1 << 14))
    steps = st.integers(0, 255).map(lambda steps: -steps / SCORE_STEPS)
    return streams.Proposal(
        behind=draw(small),
        tokens=draw(st.tuples(*[token] * size)),
        parents=draw(st.tuples(*(st.integers(0, first + place - 1) for place in range(size)))),
        scores=draw(st.tuples(*[steps] * size)),
        first=first,
        source=draw(small),
        epoch=draw(token),
        cached_len=draw(small),
    )


chance = st.floats(-50, 0, width=32)
logprobs = st.lists(
    st.builds(
        types.TokenLogprobs,
        chance,
        st.lists(st.tuples(token, chance), max_size=3).map(tuple),
        token,
    ),
    max_size=4,
).map(tuple)
words = st.text(st.characters(codec="utf-8"), max_size=12)
part = st.none() | st.floats(0, 2, width=32)
defaults = st.builds(GenerationDefaults, part, part, st.none() | small, part, part, tokens, tokens)
models = st.builds(
    types.ModelDescription,
    *(words, words, token, token, tokens, words, words, small, words, bound, words, words, words),
    *(defaults, st.integers(0, 2**64 - 1), token, small),
)
stops, flag = st.frozensets(token, max_size=4), st.booleans()
decodings = st.builds(
    streams.Decoding,
    contexts,
    samplings | with_history,
    small,
    stops,
    flag,
    flag,
    lookups,
    words,
    forced=small,
) | st.builds(
    streams.Decoding,
    contexts.map(lambda context: replace(context, base=0)),
    st.just(types.SamplingParams()),
    small,
    suffix_shape=st.just(types.DraftShape(0, 0)),
    prompt_logprobs=st.builds(
        streams.PromptLogprobs, st.just(1), st.just(1), st.integers(0, types.MAX_LOGPROBS)
    ),
)
draftings = st.builds(
    streams.Drafting, contexts, samplings | with_history, shapes, flag, flag, words
)
commits = st.builds(
    streams.Commit, small, tokens, small, small, token, small, logprobs, bound, small, small
)
PAIRS = [
    (contexts, codec.encode_context, codec.decode_context),
    (samplings, encode_sampling, decode_sampling),
    (with_history, encode_sampling, decode_sampling),
    (shapes, encode_shape, decode_shape),
    (models, codec.encode_model, codec.decode_model),
]
ITEMS: list[tuple[Any, Any, Any]] = [
    (decodings, codec.encode_decoding, codec.decode_decoding),
    (draftings, codec.encode_drafting, codec.decode_drafting),
    (commits, codec.encode_commit, codec.decode_commit),
    (grown() | whole, encode_proposal, decode_proposal),
]
PAIRS += [(values, partial(encode, STREAM), decode) for values, encode, decode in ITEMS]


def over_the_wire(message: Message) -> Any:
    """Return the message that is parsed from its bytes."""
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize(
    ("values", "encode", "decode"), PAIRS, ids=lambda part: getattr(part, "__name__", "")
)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_what_is_sent_arrives(
    values: st.SearchStrategy[Any],
    encode: Callable[[Any], Message],
    decode: Callable[[Any], Any],
    data: st.DataObject,
) -> None:
    """The value goes over real bytes; fields that equality ignores are compared as well."""
    value = data.draw(values)
    message = over_the_wire(encode(value))
    assert asdict(decode(message)) == asdict(value)
    assert getattr(message, "stream", STREAM) == STREAM


@pytest.mark.parametrize(
    ("kind", "wire", "prefix"),
    [
        (types.Rule, orchestrator_pb2.AcceptanceRule, "ACCEPTANCE_RULE_"),
        (types.Method, orchestrator_pb2.DraftMethod, "DRAFT_METHOD_"),
        (types.Schedule, orchestrator_pb2.DraftSchedule, "DRAFT_SCHEDULE_"),
        (Finish, orchestrator_pb2.FinishReason, "FINISH_REASON_"),
        (types.Rule, common_pb2.Rule, "RULE_"),
        (types.Method, common_pb2.Method, "METHOD_"),
        (types.Schedule, common_pb2.Schedule, "SCHEDULE_"),
    ],
)
def test_choices_have_the_names_and_numbers_of_the_wire(
    kind: type[Enum], wire: Any, prefix: str
) -> None:
    numbers = {name.removeprefix(prefix): number for name, number in wire.items()}
    assert {each.name: each.value for each in kind}.items() <= numbers.items()


@given(drafts | drawn, small)
@settings(max_examples=EXAMPLES)
def test_a_whole_draft_is_a_proposal_and_back(draft: types.Draft, behind: int) -> None:
    proposal = proposal_of(draft, behind)
    assert (proposal.behind, proposal.first) == (behind, 1)
    assert draft_of(decode_proposal(over_the_wire(encode_proposal(STREAM, proposal)))) == draft


@given(st.lists(st.floats(-100, 1), min_size=1, max_size=types.MAX_NODES))
def test_a_score_arrives_as_near_as_a_byte_can_say(scores: list[float]) -> None:
    nodes = types.Draft.chain((1,) * len(scores))
    proposal = replace(proposal_of(nodes, 3), scores=tuple(scores))
    message = encode_proposal(STREAM, proposal)
    assert len(message.scores) == len(scores)
    for score, arrived in zip(scores, decode_proposal(message).scores, strict=True):
        said = min(0.0, max(-255 / SCORE_STEPS, score))
        assert abs(arrived - said) <= 0.5 / SCORE_STEPS


def test_a_proposal_without_scores_is_one_of_certain_nodes() -> None:
    message = common_pb2.Proposal(stream=STREAM, behind=4, tokens=[8, 9], parents=[0, 1])
    assert decode_proposal(message) == proposal_of(types.Draft.chain((8, 9)), 4)


def test_when_a_proposal_arrived_is_known_to_whom_it_came_to_and_not_sent() -> None:
    proposal = replace(proposal_of(types.Draft.chain((8, 9)), 4), arrived=2.5)
    message = over_the_wire(encode_proposal(STREAM, proposal))
    assert decode_proposal(message).arrived == 0
    assert decode_proposal(message, 7.5).arrived == 7.5


def test_greedy_sends_nothing() -> None:
    greedy = types.SamplingParams(temperature=0.0, top_k=5, top_p=0.5, seed=7)
    assert encode_sampling(greedy).ByteSize() == 0
    assert decode_sampling(common_pb2.SamplingParams()) == types.SamplingParams()
