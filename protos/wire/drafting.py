"""Converts drafts and their shapes to messages and back."""

from __future__ import annotations

import math
from enum import Enum
from typing import TypeVar

from tandem.protos import streams, tree, types
from tandem.protos.errors import InvalidRequest
from tandem.v1 import common_pb2

SCORE_STEPS = 16  # an encoded score is a natural logarithm in steps of 1/16
_SCORES = tuple(-step / SCORE_STEPS for step in range(256))

Choice = TypeVar("Choice", bound=Enum)


def decode_choice(field: str, kind: type[Choice], number: int) -> Choice:
    """Convert a number to the enum member with this value, and 0 to the first member. Raises
    InvalidRequest if no member has this value.
    """
    try:
        return kind(number or 1)
    except ValueError:
        known = ", ".join(each.name for each in kind)
        raise InvalidRequest.of(field, f"is {number}, not one of {known}") from None


def encode_shape(shape: types.DraftShape) -> common_pb2.DraftShape:
    """Convert a draft shape to a message. The default method and schedule are not sent."""
    message = common_pb2.DraftShape(
        levels=shape.levels,
        branches=shape.branches,
        nodes=shape.nodes,
        confidence=shape.confidence,
    )
    if shape.method is not types.Method.TREE:
        message.method = common_pb2.Method.ValueType(shape.method.value)
    if shape.schedule is not types.Schedule.GOODPUT:
        message.schedule = common_pb2.Schedule.ValueType(shape.schedule.value)
    return message


def decode_shape(message: common_pb2.DraftShape) -> types.DraftShape:
    """Convert a message to a draft shape. Raises InvalidRequest if a value is invalid."""
    method = decode_choice("shape.method", types.Method, message.method)
    for field, most in (
        ("levels", types.MAX_LEVELS),
        ("nodes", types.MAX_NODES),
        ("branches", types.MAX_NODES),
    ):
        if (value := getattr(message, field)) > most:
            raise InvalidRequest.of(f"shape.{field}", f"is {value}, above {most}")
    if not 0 <= message.confidence < math.inf:
        problem = f"is {message.confidence:g}, below 0 or not finite"
        raise InvalidRequest.of("shape.confidence", problem)
    return types.DraftShape(
        message.levels,
        message.branches,
        message.nodes,
        method,
        message.confidence,
        decode_choice("shape.schedule", types.Schedule, message.schedule),
    )


def encode_proposal(stream: int, proposal: streams.Proposal) -> common_pb2.Proposal:
    """Convert a proposal to a message."""
    numbers = range(proposal.first, proposal.first + len(proposal.tokens))
    return common_pb2.Proposal(
        stream=stream,
        behind=proposal.behind,
        source=proposal.source,
        first=proposal.first,
        tokens=proposal.tokens,
        parents=[n - p if p else 0 for n, p in zip(numbers, proposal.parents, strict=True)],
        scores=bytes([min(255, max(0, round(-SCORE_STEPS * each))) for each in proposal.scores]),
        distributions=[
            common_pb2.Distribution(tokens=each.tokens, weights=each.weights)
            for each in proposal.distributions
        ],
        epoch=proposal.epoch,
        cached_len=proposal.cached_len,
    )


def decode_proposal(message: common_pb2.Proposal, arrived: float = 0.0) -> streams.Proposal:
    """Convert a message to a proposal. Raises InvalidRequest if the message is invalid. Nodes
    without scores count as certain to be accepted.
    """
    tokens, count = tuple(message.tokens), len(message.tokens)
    if count > types.MAX_NODES:
        raise InvalidRequest.of("draft.tokens", f"has {count} nodes, above {types.MAX_NODES}")
    if len(message.parents) != count:
        counts = f"has {len(message.parents)} entries for {count} tokens"
        raise InvalidRequest.of("draft.parents", counts)
    if message.scores and len(message.scores) != count:
        counts = f"has {len(message.scores)} entries for {count} tokens"
        raise InvalidRequest.of("draft.scores", counts)
    first = message.first or 1
    parents = tuple(
        first + index - back if back else 0 for index, back in enumerate(message.parents)
    )
    distributions = tuple(
        types.Distribution(tuple(each.tokens), tuple(each.weights))
        for each in message.distributions
    )
    proposal = streams.Proposal(
        behind=message.behind,
        tokens=tokens,
        parents=parents,
        scores=tuple(_SCORES[each] for each in message.scores) or (0.0,) * count,
        first=first,
        source=message.source,
        distributions=distributions,
        epoch=message.epoch,
        cached_len=message.cached_len,
        arrived=arrived,
    )
    if min(parents, default=0) < 0:
        raise InvalidRequest.of("draft.parents", "point before the first node")
    if distributions:
        draft_of(proposal)
    return proposal


def proposal_of(draft: types.Draft, behind: int) -> streams.Proposal:
    """Convert a whole draft to a proposal. All nodes count as certain to be accepted."""
    parents = tuple(parent + 1 for parent in draft.parents)
    scores = (0.0,) * len(draft)
    return streams.Proposal(
        behind, draft.tokens, parents, scores, distributions=draft.distributions
    )


def draft_of(proposal: streams.Proposal) -> types.Draft:
    """Convert a proposal that contains a whole tree to a draft. Raises InvalidRequest if the tree
    is incomplete, or if its distributions do not fit its tokens.
    """
    if any(0 < parent < proposal.first for parent in proposal.parents):
        raise InvalidRequest.of("draft.parents", "refer to a node of another proposal")
    parents = tuple(parent - proposal.first if parent else -1 for parent in proposal.parents)
    if problem := tree.problem(parents):
        raise InvalidRequest.of("draft.parents", problem)
    if problem := _distribution_problem(proposal.distributions, proposal.tokens, parents):
        raise InvalidRequest.of("draft.distributions", problem)
    return types.Draft(proposal.tokens, parents, proposal.distributions)


def _distribution_problem(
    distributions: tuple[types.Distribution, ...],
    tokens: tuple[int, ...],
    parents: tuple[int, ...],
) -> str | None:
    """Return why the tokens cannot be drawn from these distributions, or None if they can."""
    if not distributions:
        return None
    if len(distributions) != len(tokens) + 1:
        return f"has {len(distributions)} entries for {len(tokens)} tokens"
    for each in distributions:
        if len(each.tokens) > types.MAX_CHOICES:
            return f"has an entry of {len(each.tokens)} tokens, above {types.MAX_CHOICES}"
        if len(each.tokens) != len(each.weights) or len(set(each.tokens)) != len(each.tokens):
            return "has an entry without exactly one weight for each of its tokens"
    for node, siblings in enumerate(tree.children(parents)):
        drawn = [tokens[child] for child in siblings]
        weights = dict(zip(distributions[node].tokens, distributions[node].weights, strict=True))
        if len(set(drawn)) != len(drawn) or not all(weights.get(token) for token in drawn):
            return f"must have a distinct token of weight above 0 for each child of node {node - 1}"
    return None
