"""Proposing one draft: extend the session, then grow a chain or tree level by level.

A job for the model thread: every level is one step, shared with all other sessions that are
drafting. The drafter adds the target's own noise to its logits, so both tend to pick the same token
although no probability crosses the wire.
"""

from __future__ import annotations

from collections.abc import Generator

import torch

from drafter_service.growth import ROOT, Growth
from drafter_service.guesses import Way
from engine.plan import Segment
from engine.sampling import Adjustment
from engine.sessions import Sessions
from protos import tree
from protos.types import Context, Proposal

FED_PER_NODE = 4  # nodes looked behind, at most, for one that is proposed


def propose(
    sessions: Sessions, context: Context, way: Way
) -> Generator[Segment, torch.Tensor, Proposal]:
    """Yields a segment per level, takes their logits, returns the proposal.

    The session ends up holding the context and, in order, the draft's leading nodes as far as they
    were fed.
    """
    growth = Growth(way.shape, room=FED_PER_NODE * max(way.shape.nodes, way.shape.levels))
    with sessions.extended(context, growth.room) as session:
        tokens = context.tokens[session.length - context.base :]
        segment = Segment(session.room, session.length, tokens, tree.chain(len(tokens)), wanted=1)
        adjustment = Adjustment(way.params, session.committed(context))
        logits = yield from sessions.feed(context, segment)
        sessions.keep(session, context, ())
        nodes, position = [ROOT], context.length
        while nodes:
            rows = adjustment.rows(logits[:, : way.tokens], [growth.path(n) for n in nodes])
            for node, each in zip(nodes, way.guess(rows, position), strict=True):
                growth.sprout(node, each.children, each.drawn)
            if nodes := growth.frontier():
                position += 1
                segment = Segment(
                    room=session.room,
                    context=context.length,
                    tokens=tuple(growth.nodes[node].token for node in nodes),
                    parents=growth.fed_parents(),
                    wanted=len(nodes),
                )
                logits = yield from sessions.feed(context, segment)
        draft, trunk = growth.finish()
        fed = [growth.nodes[node].token for node in growth.fed]
        cached = sessions.keep(session, context, fed, trunk)
        expected = growth.expected if way.predicts else 0.0
        return Proposal(draft, cached, session.epoch, expected)
