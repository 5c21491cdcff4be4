"""Openings that do not fit the context of a drafter with its own tokenizer: no draft fits either,
and the drafter spends no time on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from tandem.benchmarks.peers.prompts import tokenised
from tandem.drafter_service.foreign.chains import EXTRA_TOKENS, MAX_OPENING_CONTEXTS
from tandem.drafter_service.foreign.translation import Translation
from tandem.models import TARGET
from tandem.protos.types import Context, DraftShape
from tests.services.foreign import FOREIGN, ID, Drafter, Tokens
from tests.services.jobs import CONTEXT, Engine


@pytest.fixture(scope="module")
def drafter() -> Drafter:
    """Return the foreign draft model, loaded once."""
    return Drafter(Engine(FOREIGN, exact=False))


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of how many tokens each translation had."""
    counts, translate = list[int](), Translation.to_draft

    def counting(self: Translation, tokens: Sequence[int], at_start: bool = True) -> list[int]:
        counts.append(len(tokens))
        return translate(self, tokens, at_start)

    monkeypatch.setattr(Translation, "to_draft", counting)
    return counts


@pytest.mark.parametrize(("length", "most"), [(0, CONTEXT * MAX_OPENING_CONTEXTS), (1, 0)])
def test_an_opening_far_longer_than_the_context_is_not_translated_and_answered_as_others_are(
    drafter: Drafter, translated: list[int], length: int, most: int
) -> None:
    length += CONTEXT * MAX_OPENING_CONTEXTS
    running = drafter.opened(Context(ID, 1, 0, (400,) * length), lockstep=True)
    running.tell(length, (500, 600))
    running.settle()
    proposals = running.stream.said
    assert [(proposal.behind, proposal.tokens) for proposal in proposals] == [
        (length, ()),
        (length + 2, ()),
    ]
    assert sum(translated) == most
    assert drafter.engine.sessions.usage == 0
    running.job.close()


def shrinking(drafter: Drafter, texts: Sequence[Tokens]) -> Iterator[tuple[Tokens, int]]:
    """Return texts that have fewer draft tokens than without their last token, with the number of
    draft tokens without it.
    """
    for text in texts:
        starts = [text[:end] for end in range(1, len(text) + 1)]
        sizes = [len(drafter.setup.translation.to_draft(start)) for start in starts]
        for (_, start), (longer, shorter) in zip(pairwise(starts), pairwise(sizes), strict=True):
            if shorter < longer:
                yield start, longer


def test_a_text_that_did_not_fit_when_it_was_opened_gets_no_draft_when_it_does(
    drafter: Drafter,
) -> None:
    """Such a text has no session."""
    text, size = next(shrinking(drafter, tokenised(TARGET, 12)))
    shape = DraftShape.chain(CONTEXT - EXTRA_TOKENS - size + 1)  # one token too many
    running = drafter.opened(Context(ID, 2, 0, text[:-1]), shape=shape)
    running.tell(len(text) - 1, text[-1:])
    running.settle()
    assert [(proposal.behind, proposal.tokens) for proposal in running.stream.said] == [
        (len(text) - 1, ()),
        (len(text), ()),
    ]
    running.job.close()
