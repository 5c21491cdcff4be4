"""Defers the prefill of a session's text until proposals for it are worth their cost. A deferred
prefill includes the tokens that were committed in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from tandem.drafter_service.tree.pending import ReadTokens, WaitingInput, chain_segment
from tandem.drafter_service.tree.session_text import CommitTokens, new_tokens
from tandem.drafter_service.tree.worth import Worth
from tandem.engine.cache.session import Session
from tandem.engine.cache.sessions import Sessions
from tandem.engine.forward.segment import Segment
from tandem.protos.types import Context


class DeferredPrefill:
    """Context manager for the session of an opening. The session is acquired once its prefill
    (`step_input`) should run. If `worth` is None, the prefill may start immediately.
    """

    session: Session

    def __init__(
        self,
        sessions: Sessions,
        context: Context,
        inbox: deque[CommitTokens],
        worth: Worth | None,
        clock: Callable[[], float],
        read: ReadTokens = tuple,
    ) -> None:
        self.context = context
        self.step_input = WaitingInput(self._ready)
        self._sessions = sessions
        self._inbox = inbox
        self._worth = worth
        self._clock = clock
        self._read = read
        self._scope = ExitStack()
        self._segment: Segment | None = None

    def __enter__(self) -> DeferredPrefill:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> bool | None:
        return self._scope.__exit__(*error)  # type: ignore[arg-type]

    def _ready(self) -> Segment | None:
        """Return a segment of the text's uncached tokens if the prefill should run now, or None
        while the prefill is deferred. Raises SessionMiss, StaleTurn, Busy.
        """
        if self._segment:
            return self._segment
        if self._worth:
            tokens = tuple(new_tokens(self._inbox, self.context.length))
            self.context = replace(self.context, tokens=self.context.tokens + tokens)
            if tokens:
                self._worth.text_grew(len(tokens), self._clock())
            if not self._worth.should_read:
                return None
        context = self.context
        self.session = self._scope.enter_context(self._sessions.acquire(context, 0))
        tokens = context.tokens[self.session.length - context.base :]
        self._segment = chain_segment(self.session, self._read(tokens))
        return self._segment
