"""Drafting without a model: what followed the newest committed tokens where they occurred before.

A Drafter that runs inside the round worker. Pure: knows no transport, clock or randomness, and
never waits, so its calls come in the order in which they were made.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from protos.errors import SessionMiss, StaleTurn
from protos.types import Context, Draft, DraftShape, Proposal, SamplingParams

SIZES = (8, 4, 2, 1)  # tokens that must match, most first
REACH = 3  # tokens that are copied for each that matched: one alone says little
SESSIONS = 256
LOOKED_AT = 32  # earlier occurrences for one draft, so that its time is bounded in any text


class Occurrences:
    """Where the n-grams of one size ended in a growing text. A position counts the tokens up to
    there, so 0 is no end at all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[bytes, int] = {}  # by n-gram, its last end
        self._earlier = array("I")  # by end - 1, where the n-gram that ends there ended before

    def grow(self, tokens: array[int]) -> None:
        """The text is `tokens` now, and was a beginning of it."""
        for end in range(len(self._earlier) + 1, len(tokens) + 1):
            if end < self.size:
                self._earlier.append(0)
                continue
            gram = self._gram(tokens, end)
            self._earlier.append(self._newest.get(gram, 0))
            self._newest[gram] = end

    def shrink(self, tokens: array[int], length: int) -> None:
        """The text, `tokens` until now, will be their first `length`."""
        for end in range(len(tokens), length, -1):
            before = self._earlier.pop()
            if before:
                self._newest[self._gram(tokens, end)] = before
            elif end >= self.size:
                del self._newest[self._gram(tokens, end)]

    def ends(self) -> Iterator[int]:
        """Where the newest n-gram ended before, latest first."""
        end = len(self._earlier)
        while end and (end := self._earlier[end - 1]):
            yield end

    def _gram(self, tokens: array[int], end: int) -> bytes:
        return tokens[end - self.size : end].tobytes()


class History:
    """The committed tokens of one session, as of `turn`."""

    def __init__(self) -> None:
        self.turn = 0
        self.tokens = array("I")
        self._index = [Occurrences(size) for size in SIZES]

    def replace(self, base: int, tokens: Sequence[int]) -> None:
        """Keep `base` tokens, drop the rest, append."""
        for occurrences in self._index:
            occurrences.shrink(self.tokens, base)
        del self.tokens[base:]
        self.tokens.extend(tokens)
        for occurrences in self._index:
            occurrences.grow(self.tokens)

    def matches(self) -> Iterator[tuple[int, int]]:
        """Where the newest tokens occurred before, and how many: the longest match first, then the
        latest.
        """
        known: set[int] = set()
        for occurrences in self._index:
            for end in occurrences.ends():
                if end not in known:
                    known.add(end)
                    yield end, occurrences.size

    def followers(self, end: int, count: int) -> Iterator[int]:
        """What followed there; where the text ends, what was copied so far follows."""
        period = len(self.tokens) - end
        return (self.tokens[end + step % period] for step in range(count))


def draft(history: History, shape: DraftShape) -> Draft:
    """The likeliest continuation, then others as far as the shape allows, joined where they begin
    alike.
    """
    tokens: list[int] = []
    parents: list[int] = []
    children: list[dict[int, int]] = [{}]  # by parent + 1: token -> node
    for end, matched in islice(history.matches(), LOOKED_AT):
        if len(tokens) >= shape.nodes:
            break
        node = -1
        for token in history.followers(end, min(shape.levels, REACH * matched)):
            siblings = children[node + 1]
            if token not in siblings:
                if len(tokens) >= shape.nodes or len(siblings) >= shape.branches:
                    break
                siblings[token] = len(tokens)
                tokens.append(token)
                parents.append(node)
                children.append({})
            node = siblings[token]
    return Draft(tuple(tokens), tuple(parents))


class Lookup:
    """The texts of at most `most` sessions; another one drops that which was used least recently.

    `epoch` is any number but 0. One for all sessions is enough: no call arrives late.
    """

    def __init__(self, epoch: int, most: int = SESSIONS) -> None:
        assert epoch and most > 0
        self._epoch = epoch
        self._most = most
        self._histories: OrderedDict[bytes, History] = OrderedDict()  # used least recently first

    def __len__(self) -> int:
        return len(self._histories)

    async def propose(
        self, context: Context, shape: DraftShape, sampling: SamplingParams
    ) -> Proposal:
        """A draft for the context, empty where nothing recurs; raises StaleTurn, SessionMiss, and
        then nothing has changed.
        """
        history = self._extended(context)
        return Proposal(draft(history, shape), context.length, self._epoch)

    async def close(self, session_id: bytes) -> None:
        """Free the session; never raises for an unknown one."""
        self._histories.pop(session_id, None)

    def _extended(self, context: Context) -> History:
        history = self._histories.get(context.session_id)
        if history and context.turn <= history.turn:
            raise StaleTurn(f"turn {context.turn} of a session that is at turn {history.turn}")
        held = len(history.tokens) if history and context.epoch else 0
        if context.epoch not in (0, self._epoch) or context.base > held:
            raise SessionMiss(f"base {context.base} is not held here")
        history = history or History()
        self._histories[context.session_id] = history
        self._histories.move_to_end(context.session_id)
        if len(self._histories) > self._most:
            self._histories.popitem(last=False)
        history.turn = context.turn
        history.replace(context.base, context.tokens)
        return history
