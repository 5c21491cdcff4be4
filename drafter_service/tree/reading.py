"""Reading a text: as soon as guesses behind it are worth that, with all that is known by then."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace

from drafter_service.tree.text import Report, news
from drafter_service.tree.unread import behind
from drafter_service.tree.waiting import Waiting
from drafter_service.tree.worth import Worth
from engine.cache.session import Session
from engine.cache.sessions import Sessions
from engine.forward.segment import Segment
from protos.types import Context


class Reading:
    """A scope in which the session is at work once `offer` was fed; `worth` None = read at once."""

    session: Session

    def __init__(
        self, sessions: Sessions, context: Context, inbox: deque[Report], worth: Worth | None
    ) -> None:
        self.context = context
        self.offer = Waiting(self._ready)
        self._sessions, self._inbox, self._worth = sessions, inbox, worth
        self._scope = ExitStack()
        self._segment: Segment | None = None

    def __enter__(self) -> Reading:
        self._scope.__enter__()
        return self

    def __exit__(self, *error: object) -> bool | None:
        return self._scope.__exit__(*error)  # type: ignore[arg-type]

    def _ready(self) -> Segment | None:
        """Raises SessionMiss, StaleTurn, Busy."""
        if self._segment:
            return self._segment
        if self._worth:
            heard = tuple(news(self._inbox, self.context.length))
            self.context = replace(self.context, tokens=self.context.tokens + heard)
            if not self._worth.begins:
                return None
        context = self.context
        self.session = self._scope.enter_context(self._sessions.extended(context, 0))
        self._segment = behind(self.session, context.tokens[self.session.length - context.base :])
        return self._segment
