"""A model's own texts, fed through our pass in every way there is: by themselves in pieces and a
token at a time, in trees beside another session, in a tree that grows in two steps.

Says how far the logits are from the original's, not what that means.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import torch

from engine.cache.rooms import Room
from engine.forward.cuda.rows import TAIL
from engine.forward.segment import Segment
from engine.model.original import BRANCH, Original, Text
from engine.port import ModelRunner
from protos import tree

SIBLINGS = 3  # wrong guesses on either side of the right one
PIECE = 23
PIECES = (1, 2, 5, 11)  # of the stream, in tokens
MARGIN = SIBLINGS * max(PIECES)  # positions for wrong guesses
NEIGHBOUR = 110  # tokens of the other session's prompt
ITSELF = "from those of the network itself"
assert MARGIN >= 2 * BRANCH


class Trial:
    """`groups`: how far rows are off, by what they are compared with, by how they are fed, and by
    the side of the first position with a prefix that they are on.
    """

    def __init__(self, forward: ModelRunner, original: Original, rooms: Sequence[Room]) -> None:
        self.groups: dict[str, list[float]] = defaultdict(list)
        self._forward, self._original = forward, original
        self._alone, self._room, self._neighbour = rooms
        self._said = 0  # tokens of the neighbour

    def run(self) -> torch.Tensor:
        """How far each row of the stream is off between feeding it alone and in company, [stream];
        infinitely where it is no number.
        """
        alone, together = self.alone(), self.in_company()
        self.grown()
        off = (together - alone).abs().amax(-1).nan_to_num(torch.inf)
        self.groups["between a chain alone and in company"] = off.tolist()
        return off

    def alone(self) -> torch.Tensor:
        """Feed the text by itself; the logits of its stream, [stream, vocab]."""
        text, lead = self._original.main, self._original.lead
        for start in range(0, lead, PIECE):  # in pieces here and whole in company
            piece = _chain(self._alone, start, text.tokens[start : min(start + PIECE, lead)])
            self._note("in pieces", text, start, self._forward([piece])[0])
        rows = [
            self._forward([_chain(self._alone, lead + place, (token,))])[0]
            for place, token in enumerate(text.tokens[lead:])
        ]
        self._note("a token at a time", text, lead, torch.cat(rows))
        return torch.cat(rows)

    def in_company(self) -> torch.Tensor:
        """Feed it beside another session, its stream as side branches of trees; the logits of the
        stream, [stream, vocab].
        """
        rng, text, lead = random.Random(1), self._original.main, self._original.lead
        if lead:
            self._beside(_chain(self._room, 0, text.tokens[:lead], 0), NEIGHBOUR)
        rows: list[torch.Tensor] = []
        while (place := lead + len(rows)) < len(text.tokens):
            piece = text.tokens[place:][: rng.choice(PIECES)]
            tokens, parents, path = self._with_siblings(rng, piece)
            own = Segment(self._room, place, tokens, parents, len(tokens))
            logits = self._beside(own, rng.choice([1, 6]))[path]
            self._forward.pool.compact(self._room, place, path)
            self._note("in trees in company", text, place, logits)
            rows += logits
        return torch.stack(rows)

    def grown(self) -> None:
        """Feed the end of two texts once more, as branches of one tree that grows in two steps."""
        main, side = self._original.main, self._original.side
        fork = self._original.fork
        tokens: list[int] = []
        parents: list[int] = []
        for place in range(fork, len(main.tokens)):
            tokens += [main.tokens[place], side.tokens[place]]
            parents += [max(len(parents) - 2, -1), len(parents) - 1]
        half = len(tokens) // 2
        first = Segment(self._room, fork, tuple(tokens[:half]), tuple(parents[:half]), half)
        rest = Segment(self._room, fork, tuple(tokens[half:]), tuple(parents), len(tokens) - half)
        rows = torch.cat([self._beside(first, 1), self._beside(rest, 6)])
        self._note("in a growing tree", main, fork, rows[::2])
        self._note("in a growing tree", side, fork, rows[1::2])

    def _beside(self, own: Segment, count: int) -> torch.Tensor:
        """Feed a segment behind some tokens of another session; its logits."""
        text = self._original.other
        start = self._said if self._said < len(text.tokens) else 0  # and then once more
        theirs = _chain(self._neighbour, start, text.tokens[start : start + count])
        self._said = start + len(theirs.tokens)
        rows, logits = self._forward([theirs, own])
        self._note("beside another session", text, start, rows)
        return logits

    def _note(self, how: str, text: Text, start: int, rows: torch.Tensor) -> None:
        for place, difference in text.differences(start, rows).items():
            side = "behind" if place >= TAIL else "before"
            self.groups[f"{ITSELF}, fed {how}, {side} position {TAIL}"].append(difference)

    def _with_siblings(
        self, rng: random.Random, piece: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
        """A piece of text hung behind wrong siblings: tokens and parents, and the text's path."""
        vocabulary = range(self._forward.model.vocab_size)
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for token in piece:
            parent = path[-1] if path else -1
            wrong = rng.randint(0, SIBLINGS) if path else 0
            tokens += rng.choices(vocabulary, k=wrong)
            parents += [parent] * wrong
            path.append(len(tokens))
            tokens.append(token)
            parents.append(parent)
        return tuple(tokens), tuple(parents), path


def _chain(room: Room, start: int, tokens: tuple[int, ...], wanted: int | None = None) -> Segment:
    count = len(tokens)
    return Segment(room, start, tokens, tree.chain(count), count if wanted is None else wanted)
