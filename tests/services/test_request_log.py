"""Every request leaves one log line, however it ends, with the same id everywhere and never with a
text.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.orchestrator.frontend import servicer, status
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.status import Recorder
from tandem.orchestrator.http import delivery
from tandem.orchestrator.http.bodies.decoding import Caller, completions
from tandem.orchestrator.http.bodies.schema import CompletionBody
from tandem.orchestrator.http.delivery import Choice, Delivery
from tandem.orchestrator.http.replies import Head, Reply
from tandem.orchestrator.http.token_texts import TokenTexts
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.request import CLIENT_KEY
from tandem.protos.transport.interceptor import REQUEST_ID
from tandem.v1 import orchestrator_pb2 as api
from tests.services.fronts import PROMPT, SECRET, TOKENIZER, Front, served
from tests.waiting import LIMIT, until


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with served() as found:
        yield found


async def test_a_finished_request_is_one_line_with_its_figures(front: Front) -> None:
    response = await front.ask((CLIENT_KEY, SECRET))
    (line,) = await front.ended(1)
    assert line["event"] == "a request has finished" and line["log_level"] == "info"
    assert line["request_id"] == response.request_id != ""
    assert (line["code"], line["finish"]) == ("OK", "stop")
    assert line["prompt_tokens"] == response.usage.prompt_tokens
    assert line["completion_tokens"] == len(response.token_ids) == 6
    assert (line["steps"], line["draft_tokens"]) == (4, 5)
    assert (line["mean_acceptance_length"], line["acceptance_rate"]) == (1.5, 0.4)
    assert (line["drafter_switches"], line["verifier_switches"]) == (0, 1)
    assert 0 <= line["queue_seconds"] <= line["first_token_seconds"] <= line["seconds"]
    assert len(line["client"]) == 8


async def test_an_id_is_the_fields_or_else_the_metadatas_or_else_new(front: Front) -> None:
    named = (REQUEST_ID, "from-metadata")
    answers = [await front.ask(named, request_id="from-field"), await front.ask(named)]
    answers += [await front.ask(), await front.ask()]
    ids = [answer.request_id for answer in answers]
    assert ids[:2] == ["from-field", "from-metadata"]
    assert len(set(ids)) == 4 and all(ids)
    assert [line["request_id"] for line in await front.ended(4)] == ids


async def test_a_refused_request_is_one_line_with_its_code(front: Front) -> None:
    wrong = api.GenerateRequest(text=PROMPT, request_id="wrong", model=4096 * "x")
    with pytest.raises(aio.AioRpcError) as failure:
        await front.stub.Generate(wrong)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    front.runner.go.clear()
    running = asyncio.ensure_future(front.ask(request_id="running"))
    await front.runner.reached.wait()
    with pytest.raises(aio.AioRpcError) as failure:
        await front.ask(request_id="busy")
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    front.drain.begun = True
    with pytest.raises(aio.AioRpcError) as failure:
        await front.ask(request_id="late")
    front.runner.go.set()
    await running
    lines = {line["request_id"]: line for line in await front.ended(4)}
    assert [
        (line["event"], line["code"]) for line in map(lines.get, ("wrong", "busy", "late"))
    ] == [
        ("a request was refused", "INVALID_ARGUMENT"),
        ("a request was refused", "RESOURCE_EXHAUSTED"),
        ("a request was refused", "UNAVAILABLE"),
    ]
    assert lines["running"]["code"] == "OK" and len(lines["wrong"]["problem"]) <= 200


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("code", ["CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL"])
async def test_a_failed_request_is_one_line_with_what_it_had(
    front: Front, code: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    front.runner.go.clear()
    request = api.GenerateRequest(text=PROMPT, request_id="one")
    if streaming:
        call = front.stub.StreamGenerate(api.StreamGenerateRequest(request=request), timeout=LIMIT)
    else:
        call = front.stub.Generate(request, timeout=LIMIT)
    reading = asyncio.ensure_future(all_of(call))
    await until(lambda: front.registry.get_sample_value("tandem_steps_total") == 3)
    if code == "INTERNAL":
        front.runner.broken = True
        front.runner.go.set()
    else:
        if code == "DEADLINE_EXCEEDED":  # a call that ends this late has exceeded its deadline
            monkeypatch.setattr(servicer, "CLOCK_SECONDS", math.inf)
        call.cancel()
    with pytest.raises((aio.AioRpcError, asyncio.CancelledError)):
        await reading
    (line,) = await front.ended(1)
    assert (line["event"], line["code"]) == ("a request has failed", code)
    assert (line["completion_tokens"], line["steps"], line["request_id"]) == (5, 3, "one")
    front.runner.go.set()


async def all_of(call: Any) -> None:
    """Wait for the end of a call."""
    if hasattr(call, "read"):
        while await call.read() is not aio.EOF:
            pass
    else:
        await call


async def test_a_client_that_leaves_with_the_whole_answer_has_not_cancelled(front: Front) -> None:
    """Tandem's client ends its call as soon as it has the last message."""
    for count in range(1, 6):
        asked = api.StreamGenerateRequest(request=api.GenerateRequest(text=PROMPT))
        call = front.stub.StreamGenerate(asked)
        while not (await call.read()).HasField("complete"):
            pass
        call.cancel()
        assert [line["code"] for line in await front.ended(count)] == ["OK"] * count


async def test_an_http_client_that_reads_nothing_has_run_out_of_time_and_is_no_bug(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "MUTE_SECONDS", 0.1)

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    body = CompletionBody(prompt=PROMPT, stream=True)
    (request,) = completions(body, Caller(b"", b"share", "mute"))
    reply = Reply(Head("mute", "tiny", 0, chat=False), 0, request, TokenTexts(TOKENIZER))
    await Delivery(front.http, body, (Choice(request, reply),))({"type": "http"}, never, never)
    (line,) = await front.ended(1)
    assert (line["code"], line["request_id"]) == ("DEADLINE_EXCEEDED", "mute")
    assert "read nothing" in line["problem"]
    assert not [line for line in front.lines if line["log_level"] == "error"]


async def test_requests_in_progress_leave_a_line_now_and_then(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SAMPLE_SECONDS", 0.01)
    monkeypatch.setattr(status, "BUSY_SECONDS", 0.05)
    metrics, ends = FrontMetrics(CollectorRegistry()), RequestLog()
    admission = Admission(Limits(1, 0), Limits(1, 0), metrics)
    recording = asyncio.create_task(Recorder(metrics, admission, ends).run())

    def of_this() -> list[Any]:
        """Return the log lines of this request, without the front end's other lines."""
        return [line for line in front.lines if line.get("waiting")]

    with admission.admitted(b"share"):
        await until(of_this)
    recording.cancel()
    line = of_this()[0]
    assert (line["event"], line["waiting"], line["running"]) == ("requests are served", 1, 0)


async def test_the_status_shows_requests_by_client_without_their_names(front: Front) -> None:
    front.runner.go.clear()
    running = asyncio.ensure_future(front.ask((CLIENT_KEY, SECRET)))
    await front.runner.reached.wait()
    shown = await front.stub.GetStatus(api.GetStatusRequest(history=True))
    front.runner.go.set()
    await running
    (model,) = shown.models
    ((name, runs, waits),) = [(each.name, each.running, each.waiting) for each in model.clients]
    assert (len(name), runs, waits) == (8, 1, 0) and SECRET not in str(shown)
    (line,) = await front.ended(1)
    assert line["client"] == name
    shown = await front.stub.GetStatus(api.GetStatusRequest())
    (last, history) = shown.models[0].last_minute, shown.models[0].history
    assert (last.requests_finished, last.requests_failed) == (1, 0)
    assert (last.acceptance_rate, last.mean_acceptance_length) == (0.4, 1.5)
    assert len(history) == 0 and shown.problems == ["no verifier serves"]
