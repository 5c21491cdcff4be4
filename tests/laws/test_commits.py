"""Which tokens of a step are cut off, and what the commit reports of the step then."""

from __future__ import annotations

import pytest

from tandem.protos.streams import Commit, Decoding
from tandem.protos.types import Context, SamplingParams


@pytest.mark.parametrize(("kept", "accepted"), [(0, 0), (1, 1), (2, 2), (4, 3)])
def test_accepted_tokens_that_are_cut_off_are_not_counted(kept: int, accepted: int) -> None:
    """Three of four tokens were accepted; the tokens after a stop string were not emitted."""
    whole = Commit(5, (1, 2, 3, 4), drafted=6, accepted=3)
    cut = whole.committing(whole.tokens[:kept])
    assert (cut.start, cut.tokens, cut.drafted) == (5, whole.tokens[:kept], 6)
    assert cut.accepted == accepted


@pytest.mark.parametrize(
    ("tokens", "kept", "finished"),
    [
        ((1, 2, 3, 4), (1, 2, 3, 4), False),
        ((1, 8, 9, 4), (1, 8), True),  # one stop token ends the text, however many follow
        ((9,), (9,), True),
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), True),  # the limit is reached
        ((1, 2, 3, 4, 5, 9), (1, 2, 3, 4, 5), True),
    ],
)
def test_a_step_is_cut_behind_the_first_stop_token_and_at_the_limit(
    tokens: tuple[int, ...], kept: tuple[int, ...], finished: bool
) -> None:
    context = Context(b"a", 1, 0, (0,) * 10)
    opening = Decoding(context, SamplingParams(), until=15, stop_token_ids=frozenset({8, 9}))
    assert opening.cut(10, tokens) == (kept, finished)
