"""What a commit reports of a step when some of its tokens are cut off."""

from __future__ import annotations

import pytest

from tandem.protos.streams import Commit


@pytest.mark.parametrize(("kept", "accepted"), [(0, 0), (1, 1), (2, 2), (4, 3)])
def test_accepted_tokens_that_are_cut_off_are_not_counted(kept: int, accepted: int) -> None:
    """Three of four tokens were accepted; the tokens after a stop string were not emitted."""
    whole = Commit(5, (1, 2, 3, 4), drafted=6, accepted=3)
    cut = whole.committing(whole.tokens[:kept])
    assert (cut.start, cut.tokens, cut.drafted) == (5, whole.tokens[:kept], 6)
    assert cut.accepted == accepted
