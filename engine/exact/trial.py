"""Feed a model's reference texts to the engine in all ways that a service uses: alone in chunks,
alone token by token, in trees beside another session, and in a tree that grows in two steps.

A trial measures how much the logits differ from the reference logits; `exactness` judges the
differences.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import torch

from tandem.engine.cache.pages import PageTable
from tandem.engine.forward.cuda.rows import TAIL
from tandem.engine.forward.segment import Segment
from tandem.engine.model.reference import BRANCH, ReferenceLogits
from tandem.engine.model.rounding import Difference, ReferenceText
from tandem.engine.model_runner import ModelRunner
from tandem.protos import tree

SIBLINGS = 3  # maximum number of wrong siblings of a right proposal
PROMPT_CHUNK = 23  # number of tokens of the prompt that are fed at once
STREAM_CHUNKS = (1, 2, 5, 11)  # numbers of tokens of the stream that are fed at once, in trees
MARGIN = SIBLINGS * max(STREAM_CHUNKS)  # extra positions in a page table, for wrong proposals
NEIGHBOUR = 110  # number of tokens of the other session's prompt
assert MARGIN >= 2 * BRANCH


class Trial:
    """One trial of a model. `groups` holds the differences between the computed rows of logits and
    the reference logits. Rows are grouped by the way in which they were fed, and by whether they
    come before position TAIL. On CUDA devices, attention handles rows before TAIL differently: they
    have no prefix.
    """

    def __init__(
        self, forward: ModelRunner, reference: ReferenceLogits, tables: Sequence[PageTable]
    ) -> None:
        self.groups: dict[str, list[Difference]] = defaultdict(list)
        self._forward = forward
        self._reference = reference
        alone, table, neighbour = tables
        self._alone = alone
        self._table = table
        self._neighbour = neighbour
        self._other_fed = 0  # number of tokens of the other session that were fed so far

    def run(self) -> torch.Tensor:
        """Feed the reference texts in every way. Returns a tensor [stream]: for each token of the
        stream, the largest difference between its logits when fed alone and when fed in a batch.
        The difference is infinite if a logit is not a number.
        """
        alone, together = self.alone(), self.in_batch()
        self.grown()
        return (together - alone).abs().amax(-1).nan_to_num(torch.inf)

    def alone(self) -> torch.Tensor:
        """Feed the main text alone, and return the logits of the tokens after its prompt, [stream,
        vocab].
        """
        text, lead = self._reference.main, self._reference.lead
        for start in range(0, lead, PROMPT_CHUNK):  # `in_batch` feeds the prompt in one piece
            tokens = text.tokens[start : min(start + PROMPT_CHUNK, lead)]
            (logits,) = self._forward([_chain(self._alone, start, tokens)])
            self._note("in chunks", text, start, logits)
        rows = [
            self._forward([_chain(self._alone, position, (token,))])[0]
            for position, token in enumerate(text.tokens[lead:], lead)
        ]
        self._note("a token at a time", text, lead, torch.cat(rows))
        return torch.cat(rows)

    def in_batch(self) -> torch.Tensor:
        """Feed the main text in one batch with another session, and return the logits of the tokens
        after the main text's prompt, [stream, vocab]. The tokens after the prompt are fed in trees,
        among wrong siblings.
        """
        rng, text, lead = random.Random(1), self._reference.main, self._reference.lead
        if lead:
            self._beside(_chain(self._table, 0, text.tokens[:lead], 0), NEIGHBOUR)
        rows: list[torch.Tensor] = []
        while (start := lead + len(rows)) < len(text.tokens):
            chunk = text.tokens[start:][: rng.choice(STREAM_CHUNKS)]
            tokens, parents, path = self._with_siblings(rng, chunk)
            segment = Segment(self._table, start, tokens, parents, len(tokens))
            logits = self._beside(segment, rng.choice([1, 6]))[path]
            self._forward.pool.compact(self._table, start, path)
            self._note("in trees in a batch", text, start, logits)
            rows += logits
        return torch.stack(rows)

    def grown(self) -> None:
        """Feed the tokens in which the main text and the side text differ once more, in one tree
        that grows in two steps.
        """
        main, side = self._reference.main, self._reference.side
        fork = self._reference.fork
        tokens: list[int] = []
        parents: list[int] = []
        for position in range(fork, len(side.tokens)):
            tokens += [main.tokens[position], side.tokens[position]]
            parents += [max(len(parents) - 2, -1), len(parents) - 1]
        half = len(tokens) // 2
        first = Segment(self._table, fork, tuple(tokens[:half]), tuple(parents[:half]), half)
        second = tuple(tokens[half:])
        grown = Segment(self._table, fork, second, tuple(parents), len(second))
        rows = torch.cat([self._beside(first, 1), self._beside(grown, 6)])
        self._note("in a growing tree", main, fork, rows[::2])
        self._note("in a growing tree", side, fork, rows[1::2])

    def _beside(self, segment: Segment, count: int) -> torch.Tensor:
        """Feed a segment in one batch with the next `count` tokens of another session, and return
        the segment's logits.
        """
        text = self._reference.other
        # after the last token of the other session, its tokens are fed again from the first one on
        start = self._other_fed if self._other_fed < len(text.tokens) else 0
        other = _chain(self._neighbour, start, text.tokens[start : start + count])
        self._other_fed = start + len(other.tokens)
        rows, logits = self._forward([other, segment])
        self._note("beside another session", text, start, rows)
        return logits

    def _note(self, how: str, text: ReferenceText, start: int, rows: torch.Tensor) -> None:
        """Add to `groups` how much `rows` differ from the reference logits. `rows` are the logits
        of a text from position `start` on.
        """
        sides = ("before", range(TAIL)), ("after", range(TAIL, len(text.tokens)))
        for side, positions in sides:
            if off := text.differences(start, rows, positions):
                name = f"from those of the network itself, fed {how}, {side} position {TAIL}"
                self.groups[name] += off

    def _with_siblings(
        self, rng: random.Random, chunk: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
        """Return a tree in which wrong siblings precede the tokens of a chunk of text: the tree's
        tokens, their parents, and the indices of the chunk's tokens.
        """
        vocabulary = range(self._forward.model.vocab_size)
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        for token in chunk:
            parent = path[-1] if path else -1
            wrong = rng.randint(0, SIBLINGS) if path else 0
            tokens += rng.choices(vocabulary, k=wrong)
            parents += [parent] * wrong
            path.append(len(tokens))
            tokens.append(token)
            parents.append(parent)
        return tuple(tokens), tuple(parents), path


def _chain(
    table: PageTable, start: int, tokens: tuple[int, ...], num_logits: int | None = None
) -> Segment:
    """Return a segment of tokens that form a chain. If `num_logits` is given, logits are computed
    only for the last `num_logits` tokens.
    """
    count = len(tokens)
    asked = count if num_logits is None else num_logits
    return Segment(table, start, tokens, tree.chain(count), asked)
