"""Jobs of a model service, stepped by hand: an engine without a thread, and openings without a
network.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import torch

from tandem.engine.cache.sessions import Sessions
from tandem.engine.config import ModelServiceConfig
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import StepInput
from tandem.engine.loading import load_model, runner_of
from tandem.engine.schedule.task import Job
from tandem.protos.streams import Proposal

CONTEXT, MOST = 512, 3


class Engine:
    """A model and its sessions."""

    def __init__(self, folder: Path, exact: bool, positions: int = 4096) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        model = load_model(ModelServiceConfig(model=folder, threads=1))
        self.forward = runner_of(model, positions, exact)
        self.fed: list[int] = []  # number of tokens of each pass
        self.now = 0.0
        self.sessions = Sessions(
            self.forward.pool, CONTEXT, MOST, count(1).__next__, 60.0, lambda: self.now
        )

    @torch.inference_mode()
    def run(self, *segments: Segment) -> list[torch.Tensor]:
        """One pass."""
        self.fed += [len(segment.tokens) for segment in segments]
        return self.forward(segments)


@dataclass
class Outbox:
    """A job's view of its opening."""

    inbox: deque[tuple[int, tuple[int, ...]]] = field(default_factory=deque)
    said: list[Proposal] = field(default_factory=list)
    paused: bool = False

    def emit(self, proposal: Proposal) -> None:
        """Say something."""
        self.said.append(proposal)


@dataclass
class Running:
    """A job, and what it offers for the next pass."""

    engine: Engine
    job: Job
    stream: Outbox
    step_input: StepInput | None = None

    def __post_init__(self) -> None:
        with torch.inference_mode():
            self.step_input = next(self.job, None)

    def segment(self, noise: random.Random | None = None) -> Segment | None:
        """Return the segment of the next pass: all that must be fed, and at random some of what may
        be.
        """
        assert self.step_input is not None
        with torch.inference_mode():
            segment = self.step_input.ready()
        chances = list(self.step_input.chances()) if segment else []
        assert chances == sorted(chances, reverse=True)
        rows = noise.randint(0, len(chances)) if noise else 0
        return self.step_input.segment(rows) if rows else segment

    @torch.inference_mode()
    def take(self, logits: torch.Tensor) -> None:
        """Give the job its logits."""
        try:
            self.step_input = self.job.send(logits)
        except StopIteration:
            self.step_input = None

    def step(self, noise: random.Random | None = None) -> bool:
        """Run one pass for this job alone; return whether there was anything to feed."""
        segment = self.segment(noise) if self.step_input else None
        if segment:
            self.take(self.engine.run(segment)[0])
        return segment is not None

    def settle(self, passes: int = 1000) -> list[Proposal]:
        """Run passes until the job waits or is done, or this many; return what it has sent
        since.
        """
        before = len(self.stream.said)
        while passes and self.step():
            passes -= 1
        return self.stream.said[before:]

    def tell(self, start: int, tokens: Sequence[int]) -> None:
        """Deliver a commit."""
        self.stream.inbox.append((start, tuple(tokens)))
