"""The real jobs of the verifier and drafter services, without models. Tokens and proposals come
from simulated texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tandem.benchmarks.goodput.device import CONTEXT, Device, NoLogits
from tandem.benchmarks.goodput.text import SimulatedText
from tandem.drafter_service.tree.deferred_prefill import DeferredPrefill
from tandem.drafter_service.tree.expansion import Expander
from tandem.drafter_service.tree.growing import GrowingTree
from tandem.drafter_service.tree.node import DraftNode, Expansion
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary
from tandem.drafter_service.tree.whole import whole_drafts
from tandem.drafter_service.tree.worth import Worth
from tandem.engine.schedule.job_stream import JobStream
from tandem.engine.schedule.task import Job, Task
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.types import Draft, TokenLogprobs
from tandem.verifier_service.acceptance import Decision, match
from tandem.verifier_service.decoding import DecodeJob


@dataclass(slots=True)
class SimulatedSampler:
    """Replaces the sampler of `verifier_service.target_sampler`. The target's tokens come from the
    simulated text. `position` is the position of the next token.
    """

    draft: Draft
    text: SimulatedText
    position: int
    overflowed: bool = False

    def decide(self, node: int, children: Sequence[int]) -> Decision:
        """Accept the child that equals the next token of the text, if there is one, and advance by
        one token.
        """
        self.position += 1
        return match(self.draft, children, self.text.token(self.position - 1))

    def logprobs(self, accepted: Sequence[int], token: int) -> tuple[TokenLogprobs, ...]:
        """Return an empty tuple, because no simulated request asks for log-probabilities."""
        return ()


def sample(texts: dict[bytes, SimulatedText], stepping: Sequence[Task]) -> None:
    """Give each decoding job of a step a sampler that takes tokens from the job's text."""
    for task in stepping:
        job = task.step_input
        if isinstance(job, DecodeJob):
            length = job.session.length + len(job.pending)
            sampler: Any = SimulatedSampler(job.draft, texts[task.owner], length)
            job.sampler = sampler


class ModellessText(SessionText):
    """A session's text in the drafter, with a `SimulatedText` instead of a draft model."""

    source: SimulatedText

    def expand(self, nodes: Sequence[DraftNode], logits: torch.Tensor, proposal: Expander) -> None:
        """Expand nodes with the simulated proposals, without reading logits."""
        self.tree.expand(nodes, self.source.children([node.position for node in nodes]))


def draft_job(
    device: Device,
    opening: Drafting,
    stream: JobStream[CommitTokens, Proposal],
    worth: Worth | None,
    source: SimulatedText,
    clock: Callable[[], float],
) -> Job:
    """Make a drafting job as `drafter_service.drafting` does. If `worth` is None, the job proposes
    complete drafts instead of a growing tree.
    """
    nothing: Any = NoLogits()
    with DeferredPrefill(device.sessions, opening.context, stream.inbox, worth, clock) as prefill:
        yield prefill.step_input
        session, context = prefill.session, prefill.context
        device.sessions.keep(session, context, ())
        tree = TokenTree(opening.shape, context.length, CONTEXT, context.turn, worth)
        text = ModellessText(device.sessions, session, opening, tree, Vocabulary(0))
        text.source = source
        if worth is None:
            yield from whole_drafts(text, lambda root: never, stream, nothing, once=False)
            return
        growing = GrowingTree(text, never, stream, worth, clock, nothing)
        while True:
            growing.take((yield from text.feed(growing)))


def never(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
    """Raise AssertionError, because no logits may be read."""
    raise AssertionError("there is no model")
