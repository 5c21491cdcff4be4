"""What a service knows about its passes before its first request."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.engine.schedule.warm_up import ROWS
from tandem.verifier_service import service as verifier_service
from tests.served import Pair


@pytest.mark.parametrize("context", [None, 4], ids=["usual", "short"])
@pytest.mark.parametrize(
    ("service", "verb"), [(drafter_service, "draft"), (verifier_service, "verify")]
)
async def test_a_service_has_taken_passes_of_several_sizes_before_it_serves(
    embedded: Pair, service: Any, verb: str, context: int | None
) -> None:
    """The price of a row and the pace of drafts are measured at start, so that the first request
    profits.
    """
    config = ModelServiceConfig(model=embedded.draft, threads=1, context_length=context)
    registry = CollectorRegistry()
    async with service.serving(config, registry):
        passes = registry.get_sample_value(f"tandem_{verb}_forward_seconds_count")
    assert passes == len(ROWS)
