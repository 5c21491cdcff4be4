"""The sources of proposals for a session, and the trust in each source. The module is pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.engine.schedule.trust import Trust
from tandem.protos.streams import LONGEST_MATCH, Decoding, Proposal
from tandem.protos.types import Draft, DraftShape, Rule
from tandem.verifier_service.answers import RecentAnswers
from tandem.verifier_service.proposals import Proposals
from tandem.verifier_service.proposed_node import Source
from tandem.verifier_service.suffix_drafts import (
    BOUNDARY,
    GrowingTokens,
    Tokens,
    suffix_proposal,
)

SEVERAL = 2  # minimum number of tokens that must match in texts other than the session's own
LEARNED = tuple(source for source in Source if source is not Source.GRAMMAR)


@dataclass(frozen=True, slots=True)
class Sources:
    """The recent answers, and the trust in each source of proposals, for one session or for all
    sessions.
    """

    answers: RecentAnswers
    trusts: Mapping[Source, Trust]

    @classmethod
    def of_all(cls, tokens: int = 0) -> Sources:
        """Return the sources of all sessions, from which each new session starts. The sources keep
        `tokens` tokens of each scope's answers.
        """
        return cls(RecentAnswers(tokens), {source: Trust.of_all() for source in LEARNED})

    def begun(self) -> Sources:
        """Return the sources of a new session."""
        trusts = {source: it.begun() for source, it in self.trusts.items()}
        return Sources(self.answers, trusts)

    @property
    def drafter(self) -> Trust:
        """The trust in the drafter's proposals."""
        return self.trusts[Source.DRAFTER]

    def observe(self, proposals: Proposals, draft: Draft, accepted: Sequence[int]) -> None:
        """Update the trust in each source after a step that accepted these nodes of the newest
        draft.
        """
        for source, trust in self.trusts.items():
            claimed = proposals.claimed(draft, accepted, source) if len(draft) else 0.0
            trust.observe(claimed, proposals.right(accepted, source))


class SuffixSources:
    """Makes proposals for one session by looking up its newest tokens in several texts."""

    def __init__(
        self, opening: Decoding, text: Sequence[int], answers: RecentAnswers, scope: bytes
    ) -> None:
        self._shape: DraftShape = opening.suffix_shape
        self._text = GrowingTokens.of(text if self._shape.levels else ())
        # under rules other than MATCH, proposals influence the text, so answers of other sessions
        # are not used
        alone = opening.sampling.rule is not Rule.MATCH
        self._answers = RecentAnswers(0) if alone else answers
        self._scope = scope
        self._answered = opening.sampling.prompt_length or len(text)
        known = (*opening.known, BOUNDARY) if opening.known else ()
        self._prediction: Tokens = np.array(known, np.int32)
        self._looked = 0  # length of the text when proposals were last made
        # for each source, the length of the text at its latest proposal
        self._found: dict[Source, int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens to the text."""
        self._text.extend(tokens)

    def proposals(
        self, known: Collection[Source], trusts: Mapping[Source, Trust], price: float
    ) -> Iterator[tuple[Source, Proposal]]:
        """Yield a proposal of each source that has not proposed the next token, or whose latest
        proposal was made several tokens ago. `known` are the sources that have proposed the next
        token. Each source is asked only once for each length of the text. Nodes that are not worth
        the price of a row are left out, because verifying them would only take time. A node's worth
        depends on the trust in its source.
        """
        text = self._text.array
        if (length := len(text)) == self._looked or not self._shape.levels:
            return
        self._looked, suffix, soon = length, text[-LONGEST_MATCH:], self._shape.levels // 2
        for source, searched, least in (
            (Source.TEXT, text, 1),
            (Source.PREDICTION, self._prediction, SEVERAL),
            (Source.ANSWERS, self._answers.of(self._scope), SEVERAL),
        ):
            fresh = source in known and length < self._found[source] + soon
            if len(searched) and not fresh:
                trust = trusts[source].log
                proposal = suffix_proposal(
                    searched, suffix, self._shape, length, least, price, trust
                )
                if proposal.tokens:
                    self._found[source] = length
                    yield source, proposal

    def remember(self) -> None:
        """Keep the session's answer when the session ends, because other sessions of its scope may
        repeat it.
        """
        text = self._text.array
        if self._shape.levels and len(text) > self._answered:
            # the end of the prompt helps to tell answers apart
            begin = max(0, self._answered - LONGEST_MATCH)
            self._answers.remember(self._scope, text[begin:].tolist())
