"""Proposing one draft: extend the session, then grow a chain or tree level by level.

A job for the model thread: every level is one step, shared with all other sessions that are
drafting. The drafter adds the target's own noise to its logits, so both tend to pick the same token
although no probability crosses the wire.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import torch

from drafter_service.growth import ROOT, Growth
from engine import sampling
from engine.plan import Segment
from engine.sessions import Sessions
from protos import tree
from protos.types import Context, DraftShape, Proposal, SamplingParams

SHORTLIST = 256  # likeliest tokens that get noise
FED_PER_NODE = 4  # nodes looked behind, at most, for one that is proposed
LOGIT_ERROR = (
    0.6  # how far a draft logit is typically off; measured by `make acceptance`, flat over 0.5-0.7
)
Children = list[tuple[int, float]]


def propose(
    sessions: Sessions,
    context: Context,
    shape: DraftShape,
    params: SamplingParams,
    token_count: int,
) -> Generator[Segment, torch.Tensor, Proposal]:
    """Yields a segment per level, takes their logits, returns the proposal.

    Only tokens below `token_count` are proposed. The session ends up holding the context and, in
    order, the draft's leading nodes as far as they were fed.
    """
    room = FED_PER_NODE * max(shape.nodes, shape.levels)
    with sessions.extended(context, room) as session:
        tokens = context.tokens[session.length - context.base :]
        parents = tree.chain(len(tokens))
        segment = Segment(session.room, session.length, tokens, parents, wanted=1)
        logits = yield from sessions.feed(context, segment)
        sessions.keep(session, context, ())
        growth = Growth(shape, room)
        (children,) = likely_children(
            logits[:, :token_count], params, context.length, shape.branches
        )
        growth.sprout(ROOT, children)
        position = context.length
        while frontier := growth.frontier():
            position += 1
            segment = Segment(
                room=session.room,
                context=context.length,
                tokens=tuple(growth.nodes[node].token for node in frontier),
                parents=growth.fed_parents(),
                wanted=len(frontier),
            )
            logits = yield from sessions.feed(context, segment)
            rows = likely_children(logits[:, :token_count], params, position, shape.branches)
            for node, children in zip(frontier, rows, strict=True):
                growth.sprout(node, children)
        draft, trunk = growth.finish()
        fed = [growth.nodes[node].token for node in growth.fed]
        cached = sessions.keep(session, context, fed, trunk)
        return Proposal(draft, cached, session.epoch)


def likely_children(
    logits: torch.Tensor, params: SamplingParams, position: int, count: int
) -> list[Children]:
    """Per row of [rows, vocab], the `count` tokens that most likely are the target's draw, with
    log-probabilities.

    The target draws argmax(log p + noise). The drafter's logits are off by some scale, and so is
    log q by that scale over the temperature: softmax((log q + noise) / error) predicts who wins.
    """
    ids, scores = sampling.perturbed(logits, params, position, SHORTLIST)
    sharpness = min(max((params.temperature or 1.0) / LOGIT_ERROR, 1e-6), 1e6)
    top = (scores * sharpness).log_softmax(-1).topk(min(count, scores.shape[-1]), dim=-1)
    rows = zip(ids.gather(-1, top.indices).tolist(), top.values.tolist(), strict=True)
    return [
        [(token, gain) for token, gain in zip(*row, strict=True) if gain > -math.inf]
        for row in rows
    ]
