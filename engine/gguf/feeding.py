"""One segment on its way through llama.cpp: the rows that its nodes need, with what precedes them
as far as it is not cached, and on which sequences they go.

Nodes whose leaf gets no sequence wait for another decode.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tandem.engine.forward.segment import Segment
from tandem.engine.gguf.llama import BatchRow
from tandem.engine.gguf.path import SequencePath
from tandem.engine.gguf.sequences import RangeContent, Sequences
from tandem.protos import tree


class SegmentDecode:
    """`left`: nodes whose rows are still to be fed. `logits`: of the nodes fed, [vocab] each."""

    def __init__(
        self, sequences: Sequences, content: RangeContent, segment: Segment, step: int
    ) -> None:
        self._sequences, self._content, self._segment = sequences, content, segment
        self._context, parents = segment.context, segment.parents
        known = segment.context + segment.cached
        assert len(content.tokens) >= known, "a KV range knows what it holds"
        content.used = step
        sequences.cut(content, known)
        content.tokens.extend(segment.tokens)
        self.left = list(range(segment.cached, len(parents)))
        self.logits: dict[int, npt.NDArray[np.float32]] = {}
        self._wanted = range(len(parents) - segment.wanted, len(parents))
        self._rows: dict[int, BatchRow] = {}  # by place
        self._at: dict[int, int] = {}  # by place of the tree, a sequence that holds it
        self._cached: dict[int, int] = {}  # positions in memory, by sequence

    def rows(self, pinned: set[int]) -> list[BatchRow]:
        """What the next decode feeds for it, nothing if no sequence can be had; its sequences are
        `pinned` from now on.
        """
        self._rows, paths = {}, self._content.paths
        pinned.update(paths)
        self._cached = {name: len(path) for name, path in paths.items()}
        self._at = {
            place: name for name, path in paths.items() for place in path.after(self._context)
        }
        inner = {self._segment.parents[node] for node in self.left}
        for leaf in [node for node in self.left if node not in inner]:
            self._lead_to(leaf, pinned)
        if self._rows:
            list(self._rows.values())[-1].wanted = True  # shows whether the model overflowed
        return list(self._rows.values())

    def take(self, logits: npt.NDArray[np.float32]) -> None:
        """The wanted rows' logits, in order, [wanted, vocab]."""
        fed = [place for place, row in self._rows.items() if row.wanted]
        for place, row in zip(fed, logits, strict=True):
            if place - self._context in self._wanted:
                self.logits[place - self._context] = row
        done = {place - self._context for place in self._rows}
        self.left = [node for node in self.left if node not in done]

    def answer(self) -> npt.NDArray[np.float32] | None:
        """The logits of the segment, [wanted, vocab]; None if none are wanted."""
        return np.stack([self.logits[node] for node in self._wanted]) if self._wanted else None

    def _lead_to(self, leaf: int, pinned: set[int]) -> None:
        """Rows on the path to a leaf, on one sequence from where it forks off what there is."""
        nodes = tree.path(self._segment.parents, leaf)
        path = SequencePath.of(self._context, [self._context + node for node in nodes])
        source, common = self._longest(path)
        name = source
        if source is None or common < len(self._content.paths[source]):
            name = self._fork(source, path, common, pinned)
        if name is None:
            return
        pinned.add(name)
        self._content.paths[name] = path
        for position in range(common, len(path)):
            place = path[position]
            wanted = place - self._context in self._wanted
            wanted = wanted and place - self._context not in self.logits
            token = self._content.tokens[place]
            self._rows[place] = BatchRow(token, position, [name], wanted)
            if place >= self._context:
                self._at[place] = name

    def _longest(self, path: SequencePath) -> tuple[int | None, int]:
        """The sequence that has most positions in common with a path, and how many those are."""
        for position in range(len(path) - 1, self._context - 1, -1):
            if (name := self._at.get(path[position])) is not None:
                return name, position + 1
        if (name := self._content.longest) is None:
            return None, 0
        return name, min(self._content.paths[name].trunk, self._context)

    def _fork(
        self, source: int | None, path: SequencePath, common: int, pinned: set[int]
    ) -> int | None:
        """A sequence that begins as `source` does; None if there is none to be had. Then the first
        leaf takes `source` itself, from others who will feed again what they lose.
        """
        first = not self._rows
        name = self._sequences.spare(pinned, last=first and source is None)
        if name is None:
            if source is None or not first:
                return None
            self._sequences.shorten(self._content, source, common)
            self._cached[source] = common
            self._at = {place: each for place, each in self._at.items() if each != source}
            self._at |= dict.fromkeys(path.first(common).after(self._context), source)
            return source
        if source is not None:
            stop = min(common, self._cached[source])
            self._sequences.fork(source, name, stop)
            for position in range(stop, common):
                self._rows[path[position]].sequences.append(name)
            self._cached[name] = stop
        else:
            self._cached[name] = 0
        return name
