"""Makes complete drafts, instead of letting a tree grow. Each draft is made from scratch after the
newest commit, level by level, and is sent as one proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

import torch

from tandem.drafter_service.tree.expansion import Expander
from tandem.drafter_service.tree.pending import WaitingInput
from tandem.drafter_service.tree.session_text import CommitTokens, SessionText
from tandem.engine.forward.segment import Segment
from tandem.engine.forward.step_input import StepInput
from tandem.engine.schedule.job_stream import JobStream
from tandem.protos.streams import Proposal


def whole_drafts(
    text: SessionText,
    propose: Callable[[int], Expander],
    stream: JobStream[CommitTokens, Proposal],
    logits: torch.Tensor,
    once: bool,
) -> Generator[StepInput, torch.Tensor, None]:
    """Send one draft if `once`, or else one draft after every commit. `logits` [1, vocab] are the
    logits after the root. `propose` takes the length of the text and returns the expander to use
    after that text.

    If `once`, the session's cache afterwards holds the text and the draft's leading nodes, up to
    the first node that was not fed.
    """
    tree = text.tree
    while True:
        nodes = [tree.root]
        while nodes:
            text.expand(nodes, logits, propose(tree.root.position))
            nodes = text.fit(tree.frontier(tree.window()))
            if nodes:
                logits = yield from text.feed(text.segment(nodes))
                tree.feed(nodes)
        draft, trunk = tree.whole_draft()
        if once:
            length = text.keep(draft.tokens[: len(trunk)], trunk)
            stream.emit(replace(draft, epoch=text.session.epoch, cached_len=length))
            return
        stream.emit(draft)
        known = False
        while not known:
            logits = yield from text.feed(WaitingInput(partial(_newest, text, stream)))
            known = text.mark_fed()


def _newest(text: SessionText, stream: JobStream[CommitTokens, Proposal]) -> Segment | None:
    """Return a segment of the newest committed tokens, or None if there is nothing to feed. If the
    committed tokens fill the draft model's context, they are not fed, and an empty draft is sent.
    """
    tree, changed = text.tree, text.take_commits(stream.inbox, restart=True)
    if tree.full and changed:
        stream.emit(tree.whole_draft()[0])
    return text.next() if text.pending and not tree.full else None
