"""A drafter is not trusted: whatever it answers, the text is the target's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc import aio

from protos import rpc
from protos.tandem.v1 import common_pb2, drafter_pb2
from tests.conftest import Services, Tandem, serve_all
from tests.system.test_same_text import ask

NAME = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"].full_name
Context = aio.ServicerContext[Any, Any]


def draft(
    tokens: list[int], parents: list[int] | None = None, choices: int = 0, **told: float
) -> bytes:
    """A ProposeResponse; parents are indices + 1 as on the wire. Of so many `choices`, if any, each
    token was drawn.
    """
    message = common_pb2.Draft(tokens=tokens, parents=parents or [])
    for _ in range(len(tokens) + 1) if choices else ():
        message.distributions.add(tokens=range(choices), weights=[1] * choices)
    told_: dict[str, Any] = told
    return drafter_pb2.ProposeResponse(draft=message, **told_).SerializeToString()


ANSWERS = {
    "unknown-tokens": draft([9999, 4_000_000_000]),
    "wrong-tokens": draft([7] * 8),
    "a-cycle": draft([5, 6], [2, 1]),
    "too-many-nodes": draft([5] * 2000),
    "deeper-than-the-context": draft([5] * 64),
    "lies-about-its-cache": draft([5, 6], cached_len=4_000_000_000),
    "promises-more-than-it-drafts": draft([5, 6], expected=1e30),
    "more-choices-than-fit-into-a-call": draft([5], choices=528_400),
    "no-message": b"\xff\xff\xff",
    "nothing": b"",
}


@asynccontextmanager
async def behind(services: Services, answer: bytes | None) -> AsyncIterator[Tandem]:
    """The real verifier with a drafter that always answers this, or fails with garbled details."""

    async def propose(request: bytes, context: Context) -> bytes:
        if answer is None:
            garbled = (("grpc-status-details-bin", b"\xff\xfe"),)
            await context.abort(grpc.StatusCode.ABORTED, "no", garbled)
        assert answer is not None
        return answer

    handlers = {"Propose": grpc.unary_unary_rpc_method_handler(propose)}

    def register(server: aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))

    async with rpc.serving("127.0.0.1", 0, {NAME: register}) as address:
        hostile = replace(services, drafter=address)
        async with serve_all(hostile, ray=False, start_seconds=1) as tandem:
            yield tandem


@pytest.mark.parametrize("answer", [*ANSWERS.values(), None], ids=[*ANSWERS, "garbled-details"])
async def test_no_answer_of_a_drafter_changes_the_text(
    services: Services, answer: bytes | None
) -> None:
    async with behind(services, answer) as tandem:
        request = ask("Once upon a time", temperature=1.0, seed=8, tokens=30)
        drafted = await tandem.stub.Generate(request)
        request.speculation.num_speculative_tokens = 0
        plain = await tandem.stub.Generate(request)
    assert drafted.text == plain.text
    assert list(drafted.token_ids) == list(plain.token_ids)
