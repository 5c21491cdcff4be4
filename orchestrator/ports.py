"""What rounds need of a drafter and a verifier, whatever is behind them."""

from __future__ import annotations

from typing import Protocol

from protos.types import Context, Draft, DraftShape, Proposal, SamplingParams, Verdict


class Drafter(Protocol):
    """Proposes; whatever it answers cannot change the text."""

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """A draft for the context; raises a TandemError."""

    async def close(self, session_id: bytes) -> None:
        """Free the session; never raises for an unknown one."""


class Verifier(Protocol):
    """Decides."""

    async def verify(self, context: Context, draft: Draft, sampling: SamplingParams) -> Verdict:
        """Which nodes stand and the next token; raises a TandemError."""

    async def close(self, session_id: bytes) -> None:
        """Free the session; never raises for an unknown one."""
