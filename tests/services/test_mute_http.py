"""A client of the HTTP API that reads nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.orchestrator.http import delivery
from tandem.orchestrator.http.decoding import Caller, completion
from tandem.orchestrator.http.delivery import Delivery
from tandem.orchestrator.http.replies import Reply
from tandem.orchestrator.http.schema import CompletionBody
from tandem.orchestrator.http.token_text import TokenTexts
from tests.services.fronts import PROMPT, TOKENIZER, served


async def test_a_client_that_reads_nothing_has_run_out_of_time_and_is_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "MUTE_SECONDS", 0.1)

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    body = CompletionBody(prompt=PROMPT, stream=True)
    request = completion(body, Caller(b"", b"share", "mute"))
    reply = Reply("mute", "tiny", 0, False, False, TokenTexts(TOKENIZER))
    async with served() as front, asyncio.timeout(20):
        await Delivery(front.http, body, request, reply)({"type": "http"}, never, never)
        (line,) = await front.ended(1)
        assert (line["code"], line["request_id"]) == ("DEADLINE_EXCEEDED", "mute")
        assert "read nothing" in line["problem"]
        assert not [line for line in front.lines if line["log_level"] == "error"]
