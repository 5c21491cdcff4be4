"""Verifying one draft: extend the session, one forward pass, walk, commit or roll back.

A job for the model thread; the passes of all sessions that are being verified are one pass.
"""

from __future__ import annotations

from collections.abc import Generator

import torch

from engine import sampling
from engine.plan import Segment
from engine.sessions import Sessions
from protos import tree
from protos.types import Context, Draft, SamplingParams, Verdict
from verifier_service.acceptance import match


def verify(
    sessions: Sessions, context: Context, draft: Draft, params: SamplingParams
) -> Generator[Segment, torch.Tensor, Verdict]:
    """Yields the segment to verify and returns the verdict. A retried call gives the same one.

    Until the walk is done the session counts as holding what it held at first, so that whatever
    ends the job early leaves nothing behind.
    """
    depths = tree.depths(draft.parents)
    sessions.check_room("context.tokens", context.length)
    sessions.check_room("draft.tokens", context.length + max(depths, default=-1) + 1)
    with sessions.extended(context, len(draft)) as session:
        held = session.length
        tokens = context.tokens[held - context.base :]
        segment = Segment(
            room=session.room,
            context=held,
            tokens=tokens + draft.tokens,
            parents=tree.hang(len(tokens), draft.parents),
            wanted=1 + len(draft),
        )
        logits = yield from sessions.feed(context, segment)  # [1 + nodes, vocab]

        def choice(node: int) -> int:
            position = context.length + (0 if node < 0 else depths[node] + 1)
            return sampling.draw(logits[node + 1], params, position)

        accepted, token = match(draft.tokens, draft.parents, choice)
        cached = sessions.keep(session, context, draft.tokens, accepted)
        return Verdict(accepted, token, cached, session.epoch, held - context.base)
