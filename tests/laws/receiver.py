"""A verifier's view of a drafter, which consists of the proposals and the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.protos.streams import Proposal

Path = tuple[int, ...]


@dataclass
class Receiver:
    """Knows a text and the place of each received node: `known` maps the whole text that a node
    ends to the node's log-probability given its parent.
    """

    text: Path
    numbered: dict[int, Path] = field(default_factory=dict)
    known: dict[Path, float] = field(default_factory=dict)
    proposals: list[Proposal] = field(default_factory=list)
    repeated: int = 0  # how many received nodes were known already

    def take(self, proposal: Proposal) -> None:
        """Receive nodes; each must follow a text that is known."""
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
        """Extend the text."""
        self.text += tuple(tokens)

    def ahead(self) -> set[Path]:
        """Return, for each node that is still possible, the tokens from the end of the text to
        it.
        """
        length = len(self.text)
        return {
            path[length:]
            for path in self.known
            if len(path) > length and path[:length] == self.text
        }
