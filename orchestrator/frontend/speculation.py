"""How far guesses may run ahead of a request's text, checked and completed with the server's
settings.

Pure. What is not implemented is refused by the field's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from protos.errors import InvalidRequest, Violation
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.types import MAX_LEVELS, MAX_NODES, DraftShape, Method, Rule, Schedule
from protos.wire.drafting import decode_choice

FEW_LEVELS = 8  # where all that is guessed is verified, or their number changes with every guess
LOCKSTEP_NODES = 32


def shape(wish: api.Speculation, default: DraftShape) -> DraftShape:
    """Levels and branches as wished. Who names the branches gets levels x branches nodes, else the
    default window; who names the levels gets as many at most, unless another schedule is named.
    """
    named, wide = (wish.HasField(field) for field in ("num_speculative_tokens", "branches"))
    schedule = _schedule(wish) if wish.schedule else default.schedule
    if named and not wish.schedule:
        schedule = Schedule.CONSTANT
    levels = wish.num_speculative_tokens if named else default.levels
    window = default.nodes
    lockstep = rule(wish) is not Rule.MATCH
    if lockstep:
        window = min(window, LOCKSTEP_NODES)
    if not named and (lockstep or schedule is Schedule.HEURISTIC):
        levels = min(levels, FEW_LEVELS)
    branches = wish.branches if wide else default.branches
    whole = wish.method == Method.MEDUSA_LITE.value  # branches: what is not named makes way
    if whole and not named:
        levels = min(levels, MAX_NODES // max(1, branches))
    elif whole and not wide:
        branches = min(branches, MAX_NODES // max(1, levels))
    if wide or whole or branches == 1:
        window = MAX_NODES
    return replace(
        default,
        levels=levels,
        branches=branches,
        nodes=min(window, levels * branches),
        method=_method(wish),
        confidence=wish.confidence_threshold,
        schedule=schedule,
    )


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
