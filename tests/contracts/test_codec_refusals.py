"""What cannot be a value is refused by the name of its field."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from protos import codec
from protos.drafting import decode_draft, decode_shape
from protos.errors import InvalidRequest
from protos.sampling import decode_sampling
from protos.tandem.v1 import common_pb2, drafter_pb2


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
        decode_draft,
        common_pb2.Draft(
            tokens=[1],
            distributions=[common_pb2.Distribution(tokens=range(257), weights=[1] * 257)] * 2,
        ),
        {"draft.distributions": "has an entry of 257 tokens, above 256"},
    ),
    (
        decode_sampling,
        common_pb2.SamplingParams(temperature=-0.5, top_p=2),
        {
            "sampling.temperature": "is -0.5, below 0 or not finite",
            "sampling.top_p": "is 2, not above 0 and at most 1",
        },
    ),
    (decode_shape, common_pb2.DraftShape(levels=33), {"shape.levels": "is 33, above 32"}),
    (
        decode_shape,
        common_pb2.DraftShape(levels=32, nodes=65),
        {"shape.nodes": "is 65, above 64"},
    ),
    (
        decode_shape,
        common_pb2.DraftShape(levels=32, branches=65),
        {"shape.branches": "is 65, above 64"},
    ),
    (
        decode_draft,
        common_pb2.Draft(tokens=[1] * 65),
        {"draft.tokens": "has 65 nodes, above 64"},
    ),
    (
        decode_draft,
        common_pb2.Draft(tokens=[1, 2], parents=[0]),
        {"draft.parents": "has 1 entries for 2 tokens"},
    ),
    (
        decode_draft,
        common_pb2.Draft(parents=[0]),
        {"draft.parents": "has 1 entries for 0 tokens"},
    ),
    (
        decode_draft,
        common_pb2.Draft(tokens=[1, 2], parents=[0, 2]),
        {"draft.parents": "of node 1 is 1, not in -1..0"},
    ),
    (
        decode_draft,
        common_pb2.Draft(tokens=[1], distributions=[common_pb2.Distribution()]),
        {"draft.distributions": "has 1 entries for 1 tokens"},
    ),
    (
        decode_draft,
        common_pb2.Draft(tokens=[1], distributions=[common_pb2.Distribution()] * 2),
        {"draft.distributions": "do not give each child behind node -1 a chance of its own"},
    ),
    (
        decode_draft,
        common_pb2.Draft(
            tokens=[1],
            distributions=[
                common_pb2.Distribution(tokens=[1], weights=[3]),
                common_pb2.Distribution(tokens=[2]),
            ],
        ),
        {"draft.distributions": "has an entry that is not one weight for each of its tokens"},
    ),
    (
        decode_draft,
        common_pb2.Draft(
            tokens=[4, 4],
            parents=[0, 0],
            distributions=[common_pb2.Distribution(tokens=[4, 5], weights=[3, 1])] * 3,
        ),
        {"draft.distributions": "do not give each child behind node -1 a chance of its own"},
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
        decode_shape,
        common_pb2.DraftShape(worth=-1),
        {"shape.worth": "is -1, below 0 or not finite"},
    ),
    (
        codec.decode_proposal,
        drafter_pb2.ProposeResponse(expected=-0.5),
        {"expected": "is -0.5, below 0 or not finite"},
    ),
    (
        codec.decode_proposal,
        drafter_pb2.ProposeResponse(seconds=math.inf),
        {"seconds": "is inf, below 0 or not finite"},
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
        decode_sampling(common_pb2.SamplingParams(temperature=value, top_p=value))
    assert [violation.field for violation in refused.value.violations] == [
        "sampling.temperature",
        "sampling.top_p",
    ]
