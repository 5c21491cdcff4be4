"""A verifier's view of a drafter: it sees proposals and the text, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.protos.streams import Proposal

Path = tuple[int, ...]


@dataclass
class Receiver:
    """Knows a text and, of the nodes that it was sent, where in a text each one lies: `known` are
    the whole texts that they end, with their log-probabilities behind their parents.
    """

    text: Path
    numbered: dict[int, Path] = field(default_factory=dict)
    known: dict[Path, float] = field(default_factory=dict)
    proposals: list[Proposal] = field(default_factory=list)
    repeated: int = 0  # nodes that were known already

    def take(self, proposal: Proposal) -> None:
        """Nodes arrive; each must follow something that is known."""
        assert proposal.first == len(self.numbered) + 1, "numbers go on from 1, without a gap"
        assert proposal.behind <= len(self.text)
        self.proposals.append(proposal)
        fields = zip(proposal.tokens, proposal.parents, proposal.scores, strict=True)
        for number, (token, parent, score) in enumerate(fields, proposal.first):
            above = self.numbered[parent] if parent else self.text[: proposal.behind]
            assert parent < number
            self.repeated += (*above, token) in self.known
            self.numbered[number] = (*above, token)
            self.known[(*above, token)] = score

    def advance(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        self.text += tuple(tokens)

    def ahead(self) -> set[Path]:
        """The tokens behind the text to each node that is still possible."""
        length = len(self.text)
        return {
            path[length:]
            for path in self.known
            if len(path) > length and path[:length] == self.text
        }
