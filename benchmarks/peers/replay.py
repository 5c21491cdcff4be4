"""For drafters that run no model, count how many of their draft tokens a target would accept, given
answers that the target has already generated.

Drafts do not change a target's answer. The target therefore generates each answer once, and the
drafts of every drafter are compared with this answer. This module runs no model and measures no
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from tandem.protos import tree
from tandem.protos.streams import Decoding
from tandem.protos.types import NO_DRAFT, Context, Draft, DraftShape, SamplingParams
from tandem.verifier_service.proposals import Proposals
from tandem.verifier_service.sources import Sources, SuffixSources

Tokens = tuple[int, ...]


@dataclass(slots=True)
class Count:
    """The number of rounds of a drafter, and how many tokens were drafted and accepted in all
    rounds together. Each round emits the accepted tokens and one more token.
    """

    rounds: int = 0
    without_a_draft: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def accepted_per_round(self) -> float:
        """The number of accepted draft tokens per round."""
        return self.accepted / self.rounds if self.rounds else 0.0


class Session(Protocol):
    """A drafter that drafts for one text."""

    def draft(self, text: Tokens) -> Draft:
        """Return the drafter's proposal for the tokens after `text`."""

    def accepted(self, nodes: Sequence[int], token: int) -> None:
        """Learn which nodes of the last draft were accepted, and which token was emitted after
        them.
        """

    def end(self) -> None:
        """Tell the drafter that the text is complete."""


class PromptLookup:
    """The drafter of transformers' `prompt_lookup_num_tokens`, which proposes a single chain."""

    def __init__(self, shape: DraftShape, prompt: Tokens) -> None:
        self._found = PromptLookupCandidateGenerator(
            num_output_tokens=shape.levels, max_matching_ngram_size=2, max_length=1 << 20
        )

    def draft(self, text: Tokens) -> Draft:
        """Return a chain of the tokens that followed an earlier occurrence of the text's last
        tokens.
        """
        found, _ = self._found.get_candidates(torch.LongTensor([text]))
        return Draft.chain(tuple(found[0, len(text) :].tolist()))

    def accepted(self, nodes: Sequence[int], token: int) -> None:
        """Do nothing: this drafter does not learn."""

    def end(self) -> None:
        """Do nothing: this drafter remembers nothing."""


class Suffix:
    """The verifier's own drafter, which looks up suffixes. A draft consists of the likeliest
    proposed nodes, up to the draft shape's limit, regardless of the cost to verify them.
    """

    def __init__(self, sources: Sources, shape: DraftShape, prompt: Tokens) -> None:
        opening = Decoding(
            Context(b"", 1, 0, prompt), SamplingParams(), 1 << 20, suffix_shape=shape
        )
        self._sources = sources.begun()
        self._shape = shape
        self._known = len(prompt)
        self._suffixes = SuffixSources(opening, prompt, sources.answers, b"")
        self._proposals = Proposals(len(prompt), 1 << 20)
        self._draft: Draft = NO_DRAFT

    def draft(self, text: Tokens) -> Draft:
        """Return a draft tree, or a chain if the draft shape is a chain."""
        if news := text[self._known :]:
            self._suffixes.extend(news)
            self._proposals.advance(news)
            self._known = len(text)
        trusts = self._sources.trusts
        for source, proposal in self._suffixes.proposals(self._proposals.sources, trusts, 0.0):
            self._proposals.add(proposal, trusts[source].log, source)
        rows = sum(1 for _ in islice(self._proposals.chances(), self._shape.nodes))
        self._draft, _ = self._proposals.draft(rows)
        return self._draft

    def accepted(self, nodes: Sequence[int], token: int) -> None:
        """Update the trust in each source of proposals, given the accepted nodes of a draft."""
        self._sources.observe(self._proposals, self._draft, nodes)

    def end(self) -> None:
        """Store the answer for later drafts, if the drafter stores recent answers."""
        self._suffixes.remember()


def replay(session: Session, prompt: Tokens, answer: Tokens, count: Count) -> None:
    """Replay a finished answer round by round with a drafter, and count the tokens of its drafts
    that would be accepted.
    """
    length = 0
    while length < len(answer):
        draft = session.draft(prompt + answer[:length])
        nodes = right(draft, answer[length:-1])
        session.accepted(nodes, answer[length])
        length += len(nodes) + 1
        count.rounds += 1
        count.without_a_draft += not len(draft)
        count.drafted += len(draft)
        count.accepted += len(nodes)
    session.draft(prompt + answer)
    session.end()


def right(draft: Draft, text: Sequence[int]) -> list[int]:
    """Return the longest path of draft nodes whose tokens match the beginning of a text."""
    children, path = tree.children(draft.parents), list[int]()
    for token in text:
        below = children[path[-1] + 1 if path else 0]
        node = next((node for node in below if draft.tokens[node] == token), None)
        if node is None:
            break
        path.append(node)
    return path
