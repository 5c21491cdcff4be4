"""Describe what a step feeds: one segment of tokens per session, and the rows of all segments. All
functions of this module are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward.step_input import FixedInput
from tandem.protos import tree


@dataclass(frozen=True, slots=True)
class Segment(FixedInput):
    """The tokens that one session feeds in a step.

    Every row attends to the `context` cached tokens of the session. A tree follows the cached
    tokens, and `parents` contains the parent of each node of the tree. The first nodes of the tree
    may be cached already. `tokens` contains the tokens of all nodes that are not cached yet; these
    nodes are fed in this step. The pass computes logits for the last `num_logits` tokens. A
    `divisible` segment is a chain, and logits are computed for all of its tokens. A divisible
    segment may be fed in several steps: the session's job processes the logits of the first chunk
    and then continues with the rest.
    """

    table: PageTable
    context: int
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    num_logits: int
    divisible: bool = False
    prefillable: int = field(init=False, compare=False)
    """The number of leading tokens that may be fed in an earlier step."""

    def __post_init__(self) -> None:
        if self.divisible:
            object.__setattr__(self, "prefillable", len(self.tokens))
            return
        without_logits = 0 if self.cached else len(self.tokens) - self.num_logits
        prefillable = without_logits and min(without_logits, tree.trunk(self.parents))
        object.__setattr__(self, "prefillable", prefillable)

    @property
    def cached(self) -> int:
        """The number of nodes of the tree that are cached already."""
        return len(self.parents) - len(self.tokens)

    def ready(self) -> Segment:
        """Return this segment, which is always ready to be fed."""
        return self

    def first(self, count: int) -> Segment:
        """Return a segment that feeds only the first `count` tokens; `count` must not exceed
        `prefillable`.
        """
        num_logits, tokens = count if self.divisible else 0, self.tokens[:count]
        parents = tree.chain(count)
        return Segment(self.table, self.context, tokens, parents, num_logits, self.divisible)

    def remainder(self, count: int) -> Segment:
        """Return a segment that feeds all but the first `count` tokens, which have been fed before;
        `count` must not exceed `prefillable`.
        """
        parents, tokens = tuple(each - count for each in self.parents[count:]), self.tokens[count:]
        return Segment(self.table, self.context + count, tokens, parents, self.num_logits)


@dataclass(slots=True)
class PackedRows:
    """The rows of a step, in a form that all implementations of attention use. Each row has a
    token, a position, and a slot in which its keys are stored. `logits_rows` lists the indices of
    the rows that give logits.
    """

    token_ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    logits_rows: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> PackedRows:
        """Return all rows that the given segments feed."""
        packed = cls()
        for segment in segments:
            cached, context = segment.cached, segment.context
            packed.token_ids += segment.tokens
            packed.positions += [context + depth for depth in tree.depths(segment.parents)[cached:]]
            packed.slots += segment.table.slots(context + cached, context + len(segment.parents))
            count = len(packed.token_ids)
            packed.logits_rows += range(count - segment.num_logits, count)
        return packed
