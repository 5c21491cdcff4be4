"""A runner that takes the place of relays and runs requests as a test tells it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from tandem.orchestrator.rounds.generation import RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.streams import Commit


def step(*tokens: int, drafted: int = 0, accepted: int = 0, **more: Any) -> Step:
    """Return a step with these tokens."""
    return Step(Commit(0, tokens, drafted, accepted), **more)


class Runner:
    """A runner that remembers what it was asked to run."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []  # the completion that each request began with

    async def run(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        """Yield steps until the generation ends."""
        self.asked.append(list(request.completion))
        async for each in self.steps(request):
            yield each

    def steps(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        """Yield the steps that a test defines."""
        raise NotImplementedError
