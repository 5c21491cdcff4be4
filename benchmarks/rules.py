"""Compare acceptance rules: count the accepted tokens per round of each rule, with draft trees of
the same number of nodes.

`match` and `reject` are Tandem's rules. `independent`, the rule of SpecEdge, is implemented only
here, as a baseline. With the rule `independent`, the draft tree contains the draft model's
likeliest tokens in order of probability, and the target samples its tokens independently of the
draft.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from prometheus_client import CollectorRegistry
from rich.table import Table
from transformers.utils import logging

from tandem import models
from tandem.benchmarks.figures import report
from tandem.benchmarks.peers.prompts import story_count, tokenised
from tandem.benchmarks.peers.runner import Runner, Tokens
from tandem.drafter_service.tree.expansion import Expander, branching, expander
from tandem.drafter_service.tree.node import Child, Expansion
from tandem.drafter_service.tree.pending import chain_segment
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.drafter_service.tree.token_tree import TokenTree
from tandem.drafter_service.tree.vocabulary import Vocabulary, visible_tokens
from tandem.drafter_service.tree.whole import whole_drafts
from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import Host, hosting
from tandem.engine.sampling.sampler import warp
from tandem.engine.schedule.task import Job
from tandem.orchestrator.fleet.clients import VerifierClient
from tandem.protos.errors import TandemError
from tandem.protos.service.process import configure_logging
from tandem.protos.streams import Drafting, Proposal
from tandem.protos.tokenizer import texts_of
from tandem.protos.transport import rpc
from tandem.protos.types import MAX_NODES, Context, DraftShape, ProposeResult, Rule, SamplingParams
from tandem.protos.wire.drafting import draft_of
from tandem.verifier_service import service as verifier_service

TEMPERATURES = (1.0, 0.7)
DESCRIBE_SECONDS = 10.0
ExpanderFactory = Callable[[DraftShape, SamplingParams, int], Expander]


def independent(shape: DraftShape, params: SamplingParams, root: int) -> Expander:
    """Return an expander that proposes the draft model's likeliest tokens, in order of their
    probabilities.
    """

    def propose(logits: torch.Tensor, positions: Sequence[int]) -> list[Expansion]:
        top = warp(logits, params).topk(shape.branches)
        rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        return [Expansion([Child(*each) for each in zip(*row, strict=True)]) for row in rows]

    return propose


@dataclass(slots=True)
class ProposalRecorder:
    """A stream that stores the proposals of a drafting job instead of sending them."""

    proposals: list[Proposal] = field(default_factory=list)
    inbox: deque[CommitTokens] = field(default_factory=deque)
    paused: bool = False

    def emit(self, proposal: Proposal) -> None:
        """Store a proposal."""
        self.proposals.append(proposal)


@dataclass(frozen=True, slots=True)
class InProcess:
    """A drafter that runs in this process. `expander_of` creates the expander that proposes the
    children of draft nodes. The drafter's vocabulary has `tokens` tokens.
    """

    host: Host
    expander_of: ExpanderFactory
    tokens: int

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> ProposeResult:
        """Propose a draft for the context."""
        recorder: Any = ProposalRecorder()
        if sampling.rule is Rule.REJECT:
            shape = branching(shape)
        opening = Drafting(context, sampling, shape, once=True)
        await self.host.thread.run(context.session_id, lambda: self._draft(opening, recorder))
        (proposal,) = recorder.proposals
        return ProposeResult(draft_of(proposal), proposal.cached_len, proposal.epoch)

    async def close(self, session_id: bytes) -> None:
        """Free the session."""
        await self.host.close(session_id, self.host.sessions.close)

    def _draft(self, opening: Drafting, stream: Any) -> Job:
        sessions, context = self.host.sessions, opening.context
        expander_of = partial(self.expander_of, opening.shape, opening.sampling)
        with sessions.acquire(context, 0) as session:
            fresh = context.tokens[session.length - context.base :]
            first = yield from sessions.feed(context, chain_segment(session, fresh))
            sessions.keep(session, context, ())
            growth = TokenTree(opening.shape, context.length, sessions.context_length)
            text = SessionText(sessions, session, opening, growth, Vocabulary(self.tokens))
            yield from whole_drafts(text, expander_of, stream, first, once=True)


def contenders(visible: torch.Tensor) -> dict[str, tuple[ExpanderFactory, Rule]]:
    """Return the methods to compare: how the drafter expands draft nodes, and by which rule the
    target accepts them.
    """
    usual: ExpanderFactory = partial(expander, visible=visible)
    return {
        "match": (usual, Rule.MATCH),
        "reject": (usual, Rule.REJECT),
        "independent": (independent, Rule.MATCH),
    }


async def measure(
    target: Path, draft: Path, prompts: Sequence[Tokens], count: int, shapes: Sequence[DraftShape]
) -> dict[tuple[str, DraftShape, float], float]:
    """Measure the accepted tokens per round of each method, by draft shape and temperature."""
    found = {}
    async with (
        verifier_service.serving(ModelServiceConfig(model=target), CollectorRegistry()) as address,
        hosting(ModelServiceConfig(model=draft), "draft", False, CollectorRegistry()) as host,
        rpc.connect(address) as channel,
    ):
        verifier = VerifierClient(channel)
        ends = frozenset((await verifier.describe(DESCRIBE_SECONDS)).end_token_ids)
        visible = visible_tokens(texts_of(draft, host.runner.model.token_count))
        for name, (expander_of, rule) in contenders(visible).items():
            runner = Runner(InProcess(host, expander_of, len(visible)), verifier, ends)
            for shape, temperature in product(shapes, TEMPERATURES):
                sampling = SamplingParams(temperature, rule=rule)
                completions = await runner.complete(prompts, count, sampling, shape)
                rounds = [each for _, its in completions for each in its]
                accepted = sum(each.accepted for each in rounds)
                found[name, shape, temperature] = accepted / len(rounds)
    return found


def main(
    target: Annotated[Path, typer.Option(help="model directory of the target")] = models.TARGET,
    draft: Annotated[Path, typer.Option(help="model directory of the drafter")] = models.DRAFT,
    prompts: Annotated[int, typer.Option(help="stories", min=1, max=story_count())] = 80,
    max_new_tokens: Annotated[int, typer.Option(help="tokens of each answer", min=2)] = 64,
    nodes: Annotated[int, typer.Option(help="nodes of a draft", min=1, max=MAX_NODES)] = 16,
    json: report.JsonFile = None,
) -> None:
    """Measure the accepted tokens per round of each acceptance rule."""
    configure_logging("warning")
    logging.disable_progress_bar()
    shapes = [DraftShape(8, branches, nodes) for branches in (4, 8)]
    shapes.append(DraftShape.chain(min(nodes, 8)))
    stories = tokenised(target, prompts)
    try:
        found = asyncio.run(measure(target, draft, stories, max_new_tokens, shapes))
    except TandemError as problem:
        raise SystemExit(f"error: {problem}") from None
    rows = [
        {"temperature": temperature, "shape": asdict(shape)}
        | {name: found[name, shape, temperature] for name in ("match", "reject", "independent")}
        for shape, temperature in product(shapes, TEMPERATURES)
    ]
    heading = report.title(target, draft, f"accepted tokens per round, {prompts} prompts")
    report.publish(heading, table(rows), rows, json)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Format the results as a table."""
    shown = Table("T", "levels", "branches", "nodes", "match", "reject", "independent", box=None)
    shown.add_column("match / independent")
    for row in rows:
        ratio = row["match"] / row["independent"] if row["independent"] else None
        shown.add_row(
            f"{row['temperature']:g}",
            *(str(row["shape"][name]) for name in ("levels", "branches", "nodes")),
            *(f"{row[name]:.2f}" for name in ("match", "reject", "independent")),
            "" if ratio is None else f"{ratio:.2f}",
        )
    return shown


if __name__ == "__main__":
    typer.run(main)
