"""When a drafter reads a text, on the real draft model: when proposals after it are worth the
time.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem.drafter_service.tree.worth import Conditions, DrafterHistory
from tandem.engine.schedule.batch import SHORT_PREFIX
from tandem.engine.schedule.cost import AverageStepTimes
from tandem.protos.errors import SessionMiss
from tests.services.jobs import Engine
from tests.services.trees import Tokens

RATES = AverageStepTimes(step=0.002, row=0.001)


def conditions(delay: float = 0.001) -> Conditions:
    """Return the conditions of a verifier that makes a token in 20 ms."""
    return Conditions(price=0.05, token_seconds=0.02, delay=delay, pace=0.02)


def experienced() -> DrafterHistory:
    """Return the experience of a drafter which reads other texts."""
    return DrafterHistory(read_at=math.inf)


@pytest.fixture
def prompt(prompts: list[Tokens]) -> Tokens:
    """Return the beginning of a story."""
    return prompts[0]


def test_a_text_is_not_read_while_no_proposal_could_be_in_time(
    drafters: Any, engine: Engine, prompt: Tokens
) -> None:
    """The text takes no session meanwhile; when it is read, everything that has arrived by then is
    read with it.
    """
    told, more = conditions(delay=5.0), tuple(range(5, 45))
    drafter = drafters(prompt, told, rates=RATES, known=experienced())
    assert drafter.running.settle() == [] and len(engine.sessions) == 0
    for token in more:
        drafter.goes_on((token,))
    assert drafter.running.settle() == [] and len(engine.sessions) == 0
    told.delay, engine.fed = 0.001, []
    segment = drafter.running.segment()
    told.delay = 5.0
    assert drafter.running.segment() is segment, "a piece of it may be fed already"
    told.delay = 0.001
    assert drafter.running.settle()
    assert engine.fed[0] == len(prompt) + len(more)
    fresh = drafters((*prompt, *more), conditions(), rates=RATES, known=experienced())
    fresh.running.settle()
    drafter.hear(), fresh.hear()
    assert drafter.receiver.ahead() == fresh.receiver.ahead()


def test_a_text_that_no_proposal_pays_behind_is_read_on_in_pieces(
    drafters: Any, engine: Engine, prompt: Tokens
) -> None:
    """No proposal is sent until proposals pay again."""
    told, rates = conditions(), AverageStepTimes()
    drafter = drafters(prompt, told, rates=rates, known=experienced())
    assert drafter.running.settle()
    rates.step, rates.row, told.delay, engine.fed = 0.002, 0.001, 5.0, []
    for token in range(5, 5 + 2 * SHORT_PREFIX):
        drafter.goes_on((token,))
        assert drafter.running.settle() == []
    assert engine.fed == [SHORT_PREFIX, SHORT_PREFIX]
    told.delay, told.pace = 0.001, 0.02
    drafter.goes_on((77,))
    assert drafter.running.settle()


def test_a_text_that_is_not_read_and_misses_a_commit_is_to_be_opened_again(
    drafters: Any, prompt: Tokens
) -> None:
    drafter = drafters(prompt, conditions(delay=5.0), rates=RATES, known=experienced())
    drafter.running.tell(len(prompt) + 3, (1,))
    with pytest.raises(SessionMiss):
        drafter.running.settle()
