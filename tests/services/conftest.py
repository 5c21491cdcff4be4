"""The draft model as drafters run it, sessions of it, and texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.benchmarks.peers.prompts import tokenised
from tandem.models import DRAFT, TARGET
from tests.services.jobs import Engine
from tests.services.trees import Tokens, sessions_of


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The draft model as drafters run it."""
    return Engine(DRAFT, exact=False)


@pytest.fixture(scope="module")
def prompts() -> list[Tokens]:
    """Beginnings of stories."""
    return tokenised(TARGET, 12)


@pytest.fixture
def drafters(engine: Engine) -> Iterator[Any]:
    """Makes sessions of the engine."""
    with sessions_of(engine) as make:
        yield make
