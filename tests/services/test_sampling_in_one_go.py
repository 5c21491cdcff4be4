"""A verifier that judges all drafts of a step at once, as on a device, on a CPU: the same texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.engine.config import ModelServiceConfig
from tandem.engine.host import Host, hosting
from tandem.protos.types import Rule, SamplingParams
from tandem.verifier_service import service as verifier_service
from tandem.verifier_service.decoding import sample_step
from tests.conftest import Services
from tests.services.caller import BEGIN, UNTIL, calling, decoding, reported, straight

OPTIONS = (
    SamplingParams(),
    SamplingParams(0.8, seed=3),
    SamplingParams(0.8, seed=4, logprobs=3),
    SamplingParams(1.0, top_p=0.9, seed=3, repetition_penalty=1.2, prompt_length=BEGIN),
    SamplingParams(1.0, top_k=20, min_p=0.01, seed=9, frequency_penalty=0.2, prompt_length=BEGIN),
)


async def texts(verifier: str) -> list[tuple[Any, ...]]:
    """Of all options at once, guessed at in part and at random; and what is said of the chances."""
    async with calling(verifier) as caller:
        openings = [decoding(sampling=params) for params in OPTIONS]
        streams = await caller.open(*openings)
        for stream in streams:
            await stream.say(straight(BEGIN, (1, 2, 3)))
        found = [await stream.facts(UNTIL) for stream in streams]
        tops = [[[t for t, _ in one.top] for f in facts for one in f.logprobs] for facts in found]
        return [(reported(facts), top) for facts, top in zip(found, tops, strict=True)]


def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let verifiers sample all drafts of a step in one go; how many there are is added by step."""
    steps: list[int] = []

    def count_and_sample(fed: Any) -> None:
        sample_step(fed)
        steps.append(len(fed))

    @asynccontextmanager
    async def sampling_in_one_go(*given: Any) -> AsyncIterator[Host]:
        async with hosting(*given) as host:
            host.thread.after_forward = count_and_sample
            yield host

    monkeypatch.setattr(verifier_service, "hosting", sampling_in_one_go)
    return steps


async def test_drafts_that_are_judged_together_leave_every_text_as_it_is(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = await texts(services.verifier)
    steps = as_on_a_device(monkeypatch)
    config = ModelServiceConfig(model=services.pair.target)
    async with verifier_service.serving(config, CollectorRegistry()) as address:
        assert await texts(address) == alone
    assert max(steps) > 1, "sessions shared a step"
    assert len(alone[2][1]) == UNTIL - BEGIN


@pytest.mark.parametrize("rule", [Rule.REJECT, Rule.TOP1])
async def test_a_rule_that_needs_whole_distributions_and_one_that_draws(
    services: Services, monkeypatch: pytest.MonkeyPatch, rule: Rule
) -> None:
    params = replace(OPTIONS[1], rule=rule)

    async def one(address: str) -> Any:
        async with calling(address) as caller:
            stream = await caller.open(replace(decoding(sampling=params), lockstep=True))
            await stream.say(straight(BEGIN, (4, 5, 6)))
            fact = await stream.take()
            return fact.tokens, fact.accepted

    alone = await one(services.verifier)
    as_on_a_device(monkeypatch)
    config = ModelServiceConfig(model=services.pair.target)
    async with verifier_service.serving(config, CollectorRegistry()) as address:
        assert await one(address) == alone
