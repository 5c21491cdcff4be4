"""What the engine's sessions stand for where the target speaks another tokenizer's tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from drafter_service.foreign.translation import Translation
from protos.errors import SessionMiss
from protos.types import Context

TAIL = 32  # their newest tokens, at least, that are translated anew behind every fact


def _none() -> array[int]:
    return array("I")


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a session stands for: `theirs`, the committed tokens, of which the first `settled` are
    `head` in our own words for good; as of `epoch`, and for which client.
    """

    theirs: array[int] = field(default_factory=_none)
    settled: int = 0
    head: array[int] = field(default_factory=_none)
    epoch: int = 0
    client: bytes = b""

    def cut(self, base: int) -> Mirror:
        """The first `base` of their tokens."""
        known = self if base >= self.settled else Mirror(epoch=self.epoch, client=self.client)
        return replace(known, theirs=self.theirs[:base])

    def said(self, tokens: Sequence[int], translation: Translation) -> tuple[Mirror, array[int]]:
        """With more of their tokens; and all of them in our own words, of which only the tail is
        translated anew.
        """
        theirs = self.theirs + array("I", tokens)
        settled, head, tail = self.settled, self.head, theirs[self.settled :]
        border = translation.border(tail, near=TAIL) if len(tail) > 2 * TAIL else 0
        if len(tail) > 4 * TAIL and not border:  # a language that writes no spaces
            border = translation.character(tail, near=TAIL)
        if border:
            head = head + array("I", translation.to_own(tail[:border], opening=not settled))
            settled, tail = settled + border, tail[border:]
        own = head + array("I", translation.to_own(tail, opening=not settled))
        return replace(self, theirs=theirs, settled=settled, head=head), own


class Mirrors:
    """The mirrors of at most `most` sessions that were asked for single drafts; the one used least
    recently goes for another.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, Mirror] = {}  # in the order of their last use

    def __len__(self) -> int:
        return len(self._known)

    def find(self, context: Context) -> Mirror:
        """The mirror that an opening builds on; raises SessionMiss."""
        if not context.epoch and not context.base:
            return Mirror(client=context.client)
        mirror = self._known.get(context.session_id, Mirror())
        if context.epoch != mirror.epoch or context.base > len(mirror.theirs):
            raise SessionMiss(f"base {context.base} is not mirrored here")
        return mirror.cut(context.base)

    def keep(self, session_id: bytes, mirror: Mirror) -> None:
        """Remember a session as used just now."""
        self._known.pop(session_id, None)
        self._known[session_id] = mirror
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def close(self, session_id: bytes) -> None:
        """Forget a session; unknown ones are no error."""
        self._known.pop(session_id, None)
