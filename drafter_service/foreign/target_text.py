"""The committed tokens of a target whose tokenizer differs from the draft model's, and their
translation.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tandem.drafter_service.foreign.translation import Translation
from tandem.protos.errors import SessionMiss
from tandem.protos.types import Context

MIN_TAIL = 32  # at least this many of the newest tokens are translated again after every commit


def _no_tokens() -> array[int]:
    return array("I")


@dataclass(frozen=True, slots=True)
class TargetText:
    """The committed text of a session, stored as tokens of the target (`tokens`). `client` owns the
    session, and `epoch` is the session's current epoch. `head` is the translation of the first
    `settled` tokens. It is final: later tokens do not change it.
    """

    tokens: array[int] = field(default_factory=_no_tokens)
    settled: int = 0
    head: array[int] = field(default_factory=_no_tokens)
    epoch: int = 0
    client: bytes = b""

    def cut(self, base: int) -> TargetText:
        """Return this text truncated to its first `base` tokens."""
        known = self if base >= self.settled else TargetText(epoch=self.epoch, client=self.client)
        return replace(known, tokens=self.tokens[:base])

    def extended(
        self, tokens: Sequence[int], translation: Translation
    ) -> tuple[TargetText, array[int]]:
        """Return the text extended by `tokens`, and the translation of the whole text. Only the
        tokens after the settled part are translated again.
        """
        tokens = self.tokens + array("I", tokens)
        settled, head, tail = self.settled, self.head, tokens[self.settled :]
        boundary = translation.word_boundary(tail, near=MIN_TAIL) if len(tail) > 2 * MIN_TAIL else 0
        # the text's language has no spaces between words
        if len(tail) > 4 * MIN_TAIL and not boundary:
            boundary = translation.character_boundary(tail, near=MIN_TAIL)
        if boundary:
            head = head + array("I", translation.to_draft(tail[:boundary], at_start=not settled))
            settled, tail = settled + boundary, tail[boundary:]
        translated = head + array("I", translation.to_draft(tail, at_start=not settled))
        return replace(self, tokens=tokens, settled=settled, head=head), translated


class TargetTexts:
    """The texts of sessions for which single drafts were requested. If there are more than
    `max_sessions` texts, the least recently used text is forgotten.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._texts: dict[bytes, TargetText] = {}  # least recently used text first

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, context: Context) -> TargetText:
        """Return the committed text that an opening continues. Raises SessionMiss if the text is
        not cached.
        """
        if not context.epoch and not context.base:
            return TargetText(client=context.client)
        text = self._texts.get(context.session_id, TargetText())
        if context.epoch != text.epoch or context.base > len(text.tokens):
            raise SessionMiss(f"base {context.base} is not cached here")
        return text.cut(context.base)

    def keep(self, session_id: bytes, text: TargetText) -> None:
        """Keep a session's text, and mark it as the most recently used one."""
        self._texts.pop(session_id, None)
        self._texts[session_id] = text
        if len(self._texts) > self._max_sessions:
            del self._texts[next(iter(self._texts))]

    def close(self, session_id: bytes) -> None:
        """Forget a session's text. Closing an unknown session is no error."""
        self._texts.pop(session_id, None)
