"""One session's share of a step, and all of them as rows, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward.step_input import FixedInput
from tandem.protos import tree


@dataclass(frozen=True, slots=True)
class Segment(FixedInput):
    """One session's share of a step.

    `context` cached tokens are seen by every row. After them lies a tree, `parents`, of which the
    first nodes may be cached already; `tokens` are its last nodes, fed now. Logits are wanted for
    the last `wanted` of them. Of one that is `divisible`, a straight line, logits are wanted for
    all, and its job takes those of a first piece and goes on from there.
    """

    table: PageTable
    context: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    wanted: int
    divisible: bool = False
    head: int = field(init=False, compare=False)
    """Leading tokens that may be fed in an earlier step."""

    def __post_init__(self) -> None:
        if self.divisible:
            object.__setattr__(self, "head", len(self.tokens))
            return
        unwanted = 0 if self.cached else len(self.tokens) - self.wanted
        head = unwanted and min(unwanted, tree.trunk(self.parents))
        object.__setattr__(self, "head", head)

    @property
    def cached(self) -> int:
        """Nodes of the tree that are cached already."""
        return len(self.parents) - len(self.tokens)

    def ready(self) -> Segment:
        """A segment is a step input of itself (`engine.forward.step_input.StepInput`)."""
        return self

    def first(self, count: int) -> Segment:
        """The first `count` tokens of the head."""
        wanted, tokens = count if self.divisible else 0, self.tokens[:count]
        return Segment(self.table, self.context, tokens, tree.chain(count), wanted, self.divisible)

    def rest(self, count: int) -> Segment:
        """What comes after the first `count` tokens of the head."""
        parents = tuple(parent - count for parent in self.parents[count:])
        return Segment(self.table, self.context + count, self.tokens[count:], parents, self.wanted)


@dataclass(slots=True)
class PackedRows:
    """What is the same however the rows of a step attend. By rows: `token_ids`, `positions` and the
    `slots` where their keys are stored. `wanted` are the numbers of those that give logits.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> PackedRows:
        """All rows that segments feed."""
        packed = cls()
        for segment in segments:
            cached, context = segment.cached, segment.context
            packed.token_ids += segment.tokens
            packed.positions += [context + depth for depth in tree.depths(segment.parents)[cached:]]
            packed.slots += segment.table.slots(context + cached, context + len(segment.parents))
            packed.wanted += range(len(packed.token_ids) - segment.wanted, len(packed.token_ids))
        return packed
