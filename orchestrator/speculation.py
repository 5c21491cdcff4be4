"""How a request wants its tokens drafted, checked and completed with the server's settings.

Pure. What is not implemented is refused by the field's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from protos.drafting import decode_choice
from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.types import MAX_LEVELS, MAX_NODES, DraftShape, Method, Rule, Schedule


@dataclass(frozen=True, slots=True)
class Drafting:
    """What is drafted at most, and how much of it from round to round."""

    shape: DraftShape
    schedule: Schedule


def drafting(wish: api.Speculation, default: Drafting) -> Drafting:
    """Levels and branches as wished. Who names the branches gets levels x branches nodes, else the
    default budget; who names the levels gets them in every round, unless another schedule is named.
    """
    named, wide = (wish.HasField(field) for field in ("num_speculative_tokens", "branches"))
    levels = wish.num_speculative_tokens if named else default.shape.levels
    branches = wish.branches if wide else default.shape.branches
    whole = wish.method == Method.MEDUSA_LITE.value  # branches: what is not named makes way
    if whole and not named:
        levels = min(levels, MAX_NODES // max(1, branches))
    elif whole and not wide:
        branches = min(branches, MAX_NODES // max(1, levels))
    budget = MAX_NODES if wide or whole or branches == 1 else default.shape.nodes
    shape = replace(
        default.shape,
        levels=levels,
        branches=branches,
        nodes=min(budget, levels * branches),
        method=_method(wish),
        confidence=wish.confidence_threshold,
    )
    if wish.schedule:
        return Drafting(shape, _schedule(wish))
    return Drafting(shape, Schedule.CONSTANT if named else default.schedule)


def rule(wish: api.Speculation) -> Rule:
    """The acceptance rule; raises InvalidRequest."""
    return decode_choice("speculation.rule", Rule, wish.rule)


def problems(wish: api.Speculation) -> Iterator[Violation]:
    """Every wish that cannot be fulfilled."""
    if wish.num_speculative_tokens > MAX_LEVELS:
        limit = f"is {wish.num_speculative_tokens}, above {MAX_LEVELS}"
        yield Violation("speculation.num_speculative_tokens", limit)
    if wish.HasField("branches") and not 1 <= wish.branches <= MAX_NODES:
        yield Violation("speculation.branches", f"is {wish.branches}, not in 1..{MAX_NODES}")
    if not 0 <= wish.confidence_threshold <= 1:
        limit = f"is {wish.confidence_threshold:g}, not in 0..1"
        yield Violation("speculation.confidence_threshold", limit)
    if wish.confidence_threshold and wish.method == Method.NGRAM.value:
        limit = f"is {wish.confidence_threshold:g}, but the method NGRAM knows no confidence"
        yield Violation("speculation.confidence_threshold", limit)
    nodes = wish.num_speculative_tokens * wish.branches
    if wish.method == Method.MEDUSA_LITE.value and nodes > MAX_NODES:
        limit = f"is {wish.branches}, times num_speculative_tokens {nodes}, above {MAX_NODES} nodes"
        yield Violation("speculation.branches", limit)
    if wish.drafter:
        yield Violation("speculation.drafter", "is not supported")
    for choose in (rule, _method, _schedule):
        try:
            choose(wish)
        except InvalidRequest as unknown:
            yield from unknown.violations


def _method(wish: api.Speculation) -> Method:
    return decode_choice("speculation.method", Method, wish.method)


def _schedule(wish: api.Speculation) -> Schedule:
    return decode_choice("speculation.schedule", Schedule, wish.schedule)
