"""How much to draft next.

Pure. Asks for the configured shape, never for more levels than can still be emitted, and for
nothing while the drafter rests after a failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from protos.types import NO_DRAFT_SHAPE, DraftShape

LONGEST_REST = 32  # rounds


@dataclass(slots=True)
class Policy:
    """The draft of one generation; after n failures in a row the drafter rests 2^(n-1) rounds."""

    shape: DraftShape
    failures: int = 0
    rest: int = 0

    @property
    def wants_draft(self) -> bool:
        """Whether this generation speculates at all."""
        return self.shape.levels > 0

    def next(self, remaining: int) -> DraftShape:
        """The shape for a round when `remaining` tokens may still be emitted; one is the verifier's
        own.
        """
        if self.rest:
            self.rest -= 1
            return NO_DRAFT_SHAPE
        levels = min(self.shape.levels, remaining - 1)
        if levels <= 0:
            return NO_DRAFT_SHAPE
        nodes = self.shape.nodes if self.shape.branches > 1 else min(self.shape.nodes, levels)
        return DraftShape(levels, self.shape.branches, nodes)

    def drafted(self) -> None:
        """A draft came and was fit to be verified."""
        self.failures = 0

    def failed(self) -> None:
        """None came, or an unfit one."""
        self.failures += 1
        self.rest = min(LONGEST_REST, 1 << (self.failures - 1))
