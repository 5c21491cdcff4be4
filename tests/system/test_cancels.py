"""Requests that end before their answer does, at any point, leave nothing behind."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from tandem.v1 import orchestrator_pb2 as api
from tests.served import Services, Tandem, serve_all
from tests.waiting import until

REQUESTS, AT_ONCE = 160, 16
SECONDS = 0.5  # most seconds until a request ends while it waits, is read, or is decoded
PROMPT = "Once upon a time there was a little dragon who"
RULES = api.ACCEPTANCE_RULE_MATCH, api.ACCEPTANCE_RULE_REJECT


async def end_early(tandem: Tandem, rng: random.Random, cancelled: bool) -> None:
    """Request an answer that is cancelled, or whose deadline is too short."""
    request = api.GenerateRequest(text=PROMPT * rng.choice((1, 1, 5)))
    request.stopping.max_new_tokens, request.stopping.ignore_eos = 300, True
    request.speculation.rule = rng.choice(RULES)
    seconds = SECONDS * rng.random()
    call = tandem.stub.StreamGenerate(
        api.StreamGenerateRequest(request=request), timeout=None if cancelled else seconds
    )
    if cancelled:
        asyncio.get_running_loop().call_later(seconds, call.cancel)
    try:
        async for _ in call:
            pass
    except asyncio.CancelledError:
        assert cancelled
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancels", "deadlines"])
async def test_nothing_is_left_of_requests_that_end_early(
    cancelled: bool, services: Services, nothing_left: None
) -> None:
    rng, places = random.Random(7), asyncio.Semaphore(AT_ONCE)
    async with serve_all(services, max_running=AT_ONCE // 2) as tandem:

        async def one() -> None:
            async with places:
                await end_early(tandem, rng, cancelled)

        async def idle() -> bool:
            (model,) = (await tandem.stub.GetStatus(api.GetStatusRequest())).models
            return (model.requests_running, model.requests_waiting) == (0, 0)

        await asyncio.gather(*(one() for _ in range(REQUESTS)))
        await services.assert_no_session_is_left()
        await until(idle, "no request is running or waiting")
