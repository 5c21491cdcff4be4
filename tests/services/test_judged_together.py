"""A verifier that judges all drafts of a step at once, as on a device, on a CPU: the same texts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import verifier_service.service
from engine.config import ModelServiceConfig
from engine.host import Host, hosting
from protos.types import Rule, SamplingParams
from tests.conftest import Services
from tests.services.caller import BEGIN, UNTIL, calling, decoding, straight, told
from verifier_service.decoding import judge_together

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
        return [(told(facts), top) for facts, top in zip(found, tops, strict=True)]


async def test_drafts_that_are_judged_together_leave_every_text_as_it_is(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    @asynccontextmanager
    async def as_on_a_device(*given: Any) -> AsyncIterator[Host]:
        async with hosting(*given) as host:

            def judge(fed: Any) -> None:
                judge_together(fed)
                steps.append(len(fed))

            host.thread.fed = judge
            yield host

    alone = await texts(services.verifier)
    monkeypatch.setattr(verifier_service.service, "hosting", as_on_a_device)
    config = ModelServiceConfig(model=services.pair.target)
    async with verifier_service.service.serving(config, CollectorRegistry()) as address:
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

    @asynccontextmanager
    async def as_on_a_device(*given: Any) -> AsyncIterator[Host]:
        async with hosting(*given) as host:
            host.thread.fed = judge_together
            yield host

    alone = await one(services.verifier)
    monkeypatch.setattr(verifier_service.service, "hosting", as_on_a_device)
    config = ModelServiceConfig(model=services.pair.target)
    async with verifier_service.service.serving(config, CollectorRegistry()) as address:
        assert await one(address) == alone
