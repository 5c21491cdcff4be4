"""The committed tokens of a target with another tokenizer, and their translation."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tandem.drafter_service.foreign.translation import Translation
from tandem.protos.errors import SessionMiss
from tandem.protos.types import Context

TAIL = 32  # number of newest tokens, at least, that are translated again after every commit


def _none() -> array[int]:
    return array("I")


@dataclass(frozen=True, slots=True)
class TargetText:
    """The target's committed `tokens`, as of a session's `epoch` and for a client. `head` is the
    translation of the first `settled` tokens, which does not change any more.
    """

    tokens: array[int] = field(default_factory=_none)
    settled: int = 0
    head: array[int] = field(default_factory=_none)
    epoch: int = 0
    client: bytes = b""

    def cut(self, base: int) -> TargetText:
        """Return the text's first `base` tokens as a text."""
        known = self if base >= self.settled else TargetText(epoch=self.epoch, client=self.client)
        return replace(known, tokens=self.tokens[:base])

    def extended(
        self, tokens: Sequence[int], translation: Translation
    ) -> tuple[TargetText, array[int]]:
        """Return the text with more tokens, and the translation of all its tokens. Only the tail is
        translated again.
        """
        tokens = self.tokens + array("I", tokens)
        settled, head, tail = self.settled, self.head, tokens[self.settled :]
        border = translation.border(tail, near=TAIL) if len(tail) > 2 * TAIL else 0
        if len(tail) > 4 * TAIL and not border:  # a text in a language that writes no spaces
            border = translation.character(tail, near=TAIL)
        if border:
            head = head + array("I", translation.to_draft(tail[:border], opening=not settled))
            settled, tail = settled + border, tail[border:]
        translated = head + array("I", translation.to_draft(tail, opening=not settled))
        return replace(self, tokens=tokens, settled=settled, head=head), translated


class TargetTexts:
    """The texts of at most `most` sessions that were asked for single drafts. A new text replaces
    the least recently used one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._texts: dict[bytes, TargetText] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._texts)

    def find(self, context: Context) -> TargetText:
        """Return the text that an opening builds on; raises SessionMiss."""
        if not context.epoch and not context.base:
            return TargetText(client=context.client)
        text = self._texts.get(context.session_id, TargetText())
        if context.epoch != text.epoch or context.base > len(text.tokens):
            raise SessionMiss(f"base {context.base} is not cached here")
        return text.cut(context.base)

    def keep(self, session_id: bytes, text: TargetText) -> None:
        """Keep a session's text, as the one used most recently."""
        self._texts.pop(session_id, None)
        self._texts[session_id] = text
        if len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]

    def close(self, session_id: bytes) -> None:
        """Forget a session's text. An unknown session is no error."""
        self._texts.pop(session_id, None)
