"""Where the guesses for a session come from, and what each source is trusted with. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.protos.streams import LONGEST_MATCH, Decoding, Guess
from tandem.protos.types import Draft, DraftShape, Rule
from tandem.verifier_service.answers import RecentAnswers
from tandem.verifier_service.guess_node import Source
from tandem.verifier_service.guesses import Guesses
from tandem.verifier_service.suffix_drafts import (
    BOUNDARY,
    GrowingTokens,
    Tokens,
    suffix_guess,
)
from tandem.verifier_service.trust import Trust

SEVERAL = 2  # tokens that have to match in other texts
LEARNED = tuple(source for source in Source if source is not Source.GRAMMAR)


@dataclass(frozen=True, slots=True)
class Sources:
    """What the sources of a session are trusted with, or those of all; and the recent answers."""

    answers: RecentAnswers
    trusts: Mapping[Source, Trust]

    @classmethod
    def of_all(cls, tokens: int = 0) -> Sources:
        """What sessions begin with; so many tokens of the answers of a scope are remembered."""
        return cls(RecentAnswers(tokens), {source: Trust.of_all() for source in LEARNED})

    def begun(self) -> Sources:
        """Of a new session."""
        trusts = {source: it.begun() for source, it in self.trusts.items()}
        return Sources(self.answers, trusts)

    @property
    def drafter(self) -> Trust:
        """Of its guesses."""
        return self.trusts[Source.DRAFTER]

    def observe(
        self, guesses: Guesses, draft: Draft, token: int, accepted: Sequence[int], waited: bool
    ) -> None:
        """A step has accepted these nodes of the newest draft, the first token is this one, and the
        drafter was waited for or not before.
        """
        for source, trust in self.trusts.items():
            claimed = guesses.claimed(draft, accepted, source) if len(draft) else 0.0
            trust.observe(claimed, guesses.right(accepted, source))
        if (likeliest := guesses.likeliest()) is not None:
            self.drafter.observe_likeliest(likeliest == token)
        elif waited:
            self.drafter.waited_in_vain()


class SuffixSources:
    """The texts in which one session's newest tokens are looked up."""

    def __init__(
        self, opening: Decoding, text: Sequence[int], answers: RecentAnswers, scope: bytes
    ) -> None:
        self._shape: DraftShape = opening.suffix_shape
        self._text = GrowingTokens.of(text if self._shape.levels else ())
        alone = opening.sampling.rule is not Rule.MATCH  # its text depends on what is guessed
        self._answers, self._scope = RecentAnswers(0) if alone else answers, scope
        self._answered = opening.sampling.prompt_length or len(text)
        known = (*opening.known, BOUNDARY) if opening.known else ()
        self._prediction: Tokens = np.array(known, np.int32)
        self._looked = 0  # the length of the text after which guesses were made last
        self._found: dict[Source, int] = {}  # and where some were

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        self._text.extend(tokens)

    def guesses(
        self, known: Collection[Source], trusts: Mapping[Source, Trust], price: float
    ) -> Iterator[tuple[Source, Guess]]:
        """What may follow, by those sources of which nothing is `known`, or little by now; once for
        each text. Nothing that is not worth the price of a row, with how far they are trusted: it
        would only take time.
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
                guess = suffix_guess(searched, suffix, self._shape, length, least, price, trust)
                if guess.tokens:
                    self._found[source] = length
                    yield source, guess

    def remember(self) -> None:
        """The session ends: what it answered may be repeated by others of its scope."""
        text = self._text.array
        if self._shape.levels and len(text) > self._answered:
            begin = max(0, self._answered - LONGEST_MATCH)  # what answers follow tells them apart
            self._answers.remember(self._scope, text[begin:].tolist())
