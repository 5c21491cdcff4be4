"""What tests of model services share: the draft model as drafters run it, texts, and a chat with a
model that says what a test wants.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from transformers import PreTrainedModel

from tandem.benchmarks.peers.prompts import tokenised
from tandem.engine import streams
from tandem.models import DRAFT, TARGET
from tandem.orchestrator.requests.chat import Formats
from tests import reference
from tests.services.caller import BEGIN, DRAWN, LONG, PROMPT
from tests.services.jobs import Engine
from tests.services.saying import TEMPLATE, Saying, saying, says
from tests.services.trees import Tokens, sessions_of
from tests.waiting import LIMIT


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Return the draft model as drafters run it."""
    return Engine(DRAFT, exact=False)


@pytest.fixture(scope="module")
def prompts() -> list[Tokens]:
    """Return beginnings of stories."""
    return tokenised(TARGET, 12)


@pytest.fixture
def drafters(engine: Engine) -> Iterator[Any]:
    """Return a function that makes sessions of the engine."""
    with sessions_of(engine) as make:
        yield make


@pytest.fixture(scope="module")
def text(target: PreTrainedModel) -> Tokens:
    """Return what the target alone says after the prompt of `caller`."""
    return tuple(reference.sample(target, list(PROMPT), LONG - BEGIN, DRAWN, -1))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no caller count as lost because the machine stood still."""
    monkeypatch.setattr(streams, "SILENCE_SECONDS", LIMIT)


@pytest.fixture(scope="session")
async def said() -> AsyncIterator[Saying]:
    async with saying(says("hermes"), TEMPLATE, Formats("hermes")) as model:
        yield model


@pytest.fixture
def hermes(said: Saying) -> Saying:
    """Return one model for many tests, each of which may set what it says."""
    said.sayer.says = says("hermes")
    return said
