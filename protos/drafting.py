"""Drafts, and how much to draft, to messages and back."""

from __future__ import annotations

import math
from enum import Enum
from typing import TypeVar

from protos import tree, types
from protos.errors import InvalidRequest
from protos.tandem.v1 import common_pb2, orchestrator_pb2

Choice = TypeVar("Choice", bound=Enum)


def decode_choice(field: str, kind: type[Choice], number: int) -> Choice:
    """An enum's number to its value, none to the first; raises InvalidRequest."""
    try:
        return kind(number or 1)
    except ValueError:
        known = ", ".join(each.name for each in kind)
        raise InvalidRequest.of(field, f"is {number}, not one of {known}") from None


def encode_shape(shape: types.DraftShape) -> common_pb2.DraftShape:
    """Shape to message; what is off, or as ever, is not sent."""
    message = common_pb2.DraftShape(
        levels=shape.levels,
        branches=shape.branches,
        nodes=shape.nodes,
        confidence=shape.confidence,
        worth=shape.worth,
        level_worth=shape.level_worth,
        trust=0.0 if shape.trust == 1 else shape.trust,
    )
    if shape.method is not types.Method.TREE:
        message.method = orchestrator_pb2.DraftMethod.ValueType(shape.method.value)
    return message


def decode_shape(message: common_pb2.DraftShape) -> types.DraftShape:
    """Message to shape; raises InvalidRequest."""
    method = decode_choice("shape.method", types.Method, message.method)
    for field, most in (
        ("levels", types.MAX_LEVELS),
        ("nodes", types.MAX_NODES),
        ("branches", types.MAX_NODES),
    ):
        if (value := getattr(message, field)) > most:
            raise InvalidRequest.of(f"shape.{field}", f"is {value}, above {most}")
    for field in ("confidence", "worth", "level_worth", "trust"):
        if not 0 <= (bound := getattr(message, field)) < math.inf:
            raise InvalidRequest.of(f"shape.{field}", f"is {bound:g}, below 0 or not finite")
    return types.DraftShape(
        message.levels,
        message.branches,
        message.nodes,
        method,
        message.confidence,
        message.worth,
        message.level_worth,
        message.trust or 1.0,
    )


def encode_draft(draft: types.Draft) -> common_pb2.Draft:
    """Draft to message; a chain sends no parents."""
    distributions = [
        common_pb2.Distribution(tokens=each.tokens, weights=each.weights)
        for each in draft.distributions
    ]
    parents = [] if tree.is_chain(draft.parents) else [p + 1 for p in draft.parents]
    return common_pb2.Draft(tokens=draft.tokens, parents=parents, distributions=distributions)


def decode_draft(message: common_pb2.Draft) -> types.Draft:
    """Message to draft; raises InvalidRequest."""
    count = len(message.tokens)
    if count > types.MAX_NODES:
        raise InvalidRequest.of("draft.tokens", f"has {count} nodes, above {types.MAX_NODES}")
    parents = tuple(parent - 1 for parent in message.parents) or tree.chain(count)
    if len(parents) != count:
        counts = f"has {len(parents)} entries for {count} tokens"
        raise InvalidRequest.of("draft.parents", counts)
    if problem := tree.problem(parents):
        raise InvalidRequest.of("draft.parents", problem)
    distributions = tuple(
        types.Distribution(tuple(each.tokens), tuple(each.weights))
        for each in message.distributions
    )
    if problem := _misfit(distributions, tuple(message.tokens), parents):
        raise InvalidRequest.of("draft.distributions", problem)
    return types.Draft(tuple(message.tokens), parents, distributions)


def _misfit(
    distributions: tuple[types.Distribution, ...],
    tokens: tuple[int, ...],
    parents: tuple[int, ...],
) -> str | None:
    """Why these cannot be what the tokens were drawn from, or None."""
    if not distributions:
        return None
    if len(distributions) != len(tokens) + 1:
        return f"has {len(distributions)} entries for {len(tokens)} tokens"
    for each in distributions:
        if len(each.tokens) > types.MAX_CHOICES:
            return f"has an entry of {len(each.tokens)} tokens, above {types.MAX_CHOICES}"
        if len(each.tokens) != len(each.weights) or len(set(each.tokens)) != len(each.tokens):
            return "has an entry that is not one weight for each of its tokens"
    for node, siblings in enumerate(tree.children(parents)):
        drawn = [tokens[child] for child in siblings]
        weights = dict(zip(distributions[node].tokens, distributions[node].weights, strict=True))
        if len(set(drawn)) != len(drawn) or not all(weights.get(token) for token in drawn):
            return f"do not give each child behind node {node - 1} a chance of its own"
    return None
