"""What a client sees: streams, stops, refusals, figures; and what happens when parts are lost."""

from __future__ import annotations

import asyncio
import signal
import urllib.request
from collections import defaultdict
from contextlib import suppress

import grpc
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tandem import AsyncClient
from tandem.benchmarks.peers.round_workers import connected
from tandem.v1 import orchestrator_pb2 as api
from tests.conftest import Pair, Services, Tandem, serve_all, serve_models
from tests.system.test_same_text import ask


def stream(request: api.GenerateRequest, resume_from: int = 0) -> api.StreamGenerateRequest:
    return api.StreamGenerateRequest(request=request, resume_from=resume_from)


async def test_a_stream_adds_up_to_the_answer(tandem: Tandem, nothing_left: None) -> None:
    events = [
        event
        async for event in tandem.stub.StreamGenerate(stream(ask("Once upon a time", tokens=80)))
    ]
    chunks, last = [event.chunk for event in events[:-1]], events[-1].complete
    assert "".join(chunk.text for chunk in chunks) == last.text
    assert [token for chunk in chunks for token in chunk.token_ids] == list(last.token_ids)
    assert chunks[-1].completion_tokens == last.usage.completion_tokens == len(last.token_ids)
    assert len(chunks) == last.speculation.num_spec_steps
    assert (chunks[0].request_id, chunks[0].seed) == (last.request_id, last.seed)
    assert not any(chunk.request_id or chunk.HasField("seed") for chunk in chunks[1:])
    assert last.finish_reason in (api.FINISH_REASON_STOP, api.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("resume_from", [0, 1, 7, 30, 40])
async def test_a_broken_stream_resumes_where_the_client_stopped(
    tandem: Tandem, resume_from: int
) -> None:
    request = ask("The king said", temperature=1.0, seed=9, tokens=40)
    whole = await tandem.stub.Generate(request)
    events = [event async for event in tandem.stub.StreamGenerate(stream(request, resume_from))]
    tokens = [token for event in events[:-1] for token in event.chunk.token_ids]
    assert tokens == list(whole.token_ids)[resume_from:]
    text = "".join(event.chunk.text for event in events[:-1])
    assert whole.text.endswith(text)
    assert events[-1].complete.text == whole.text


async def test_a_random_text_cannot_be_resumed_without_its_seed(tandem: Tandem) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        _ = [e async for e in tandem.stub.StreamGenerate(stream(ask("A", temperature=1.0), 3))]
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "resume_from" in (failure.value.details() or "")


async def test_a_special_token_ends_the_text_as_a_stop_string_too(tandem: Tandem) -> None:
    request = ask("A", tokens=9)
    request.sampling.logit_bias[0] = 100
    request.stopping.ignore_eos = True
    assert len((await tandem.stub.Generate(request)).token_ids) == 9
    request.stopping.stop.append("<|endoftext|>")
    answer = await tandem.stub.Generate(request)
    assert (answer.finish_reason, list(answer.token_ids)) == (api.FINISH_REASON_STOP, [0])


async def test_a_stop_string_ends_the_text_before_it(
    tandem: Tandem, services: Services, nothing_left: None
) -> None:
    request = ask("Once upon a time, there was a little girl named Lily. She", tokens=60)
    whole = (await tandem.stub.Generate(request)).text
    stop = whole[20:26]
    request.stopping.stop.append(stop)
    cut = await tandem.stub.Generate(request)
    assert cut.text == whole[: whole.index(stop)]
    assert cut.matched_text == stop
    assert cut.finish_reason == api.FINISH_REASON_STOP
    await services.assert_no_session_is_left()


async def test_seeds_that_the_server_picks_are_reported_and_reproduce(tandem: Tandem) -> None:
    request = ask("In the garden", temperature=1.0, tokens=24)
    first = await tandem.stub.Generate(request)
    assert first.seed < 2**53, "which JSON can carry"
    request.sampling.seed = first.seed
    assert (await tandem.stub.Generate(request)).text == first.text


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask("word " * 600), ["text", "512"]),
        (ask("Hi", temperature=-1), ["sampling.temperature", "-1", "0"]),
        (ask("Hi", tokens=0), ["stopping.max_new_tokens", "0", "1"]),
        (ask("Hi", tokens=600), ["stopping.max_new_tokens", "600", "512"]),
        (ask([4096]), ["token_ids", "4096", "4095"]),
        (ask(""), ["text", "empty"]),
    ],
    ids=[
        "long-prompt",
        "temperature",
        "no-tokens",
        "too-many-tokens",
        "unknown-token",
        "empty-prompt",
    ],
)
async def test_bad_input_names_the_field_the_value_and_the_limit(
    tandem: Tandem, request_: api.GenerateRequest, words: list[str]
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await tandem.stub.Generate(request_)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    message = failure.value.details() or ""
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


async def test_a_cancelled_request_closes_its_sessions(
    tandem: Tandem, services: Services, nothing_left: None
) -> None:
    async def abandon(after: int) -> None:
        call = tandem.stub.StreamGenerate(stream(ask("One day", temperature=1.0, tokens=200)))
        for _ in range(after):
            await call.read()
        call.cancel()

    await asyncio.gather(*(abandon(n % 5) for n in range(20)))
    await services.assert_no_session_is_left()


async def test_a_killed_round_worker_costs_a_resume_and_neither_a_token_nor_a_session(
    tandem: Tandem, services: Services
) -> None:
    async with AsyncClient(tandem.address) as client:
        await connected(client, 2)
    requests = [ask("Once there was", temperature=1.0, seed=seed, tokens=120) for seed in range(6)]
    calm = [list((await tandem.stub.Generate(request)).token_ids) for request in requests]
    calls = [tandem.stub.StreamGenerate(stream(request)) for request in requests]
    streams = [aiter(call) for call in calls]
    begun = [await anext(events) for events in streams]
    for worker in round_workers():
        worker.send_signal(signal.SIGKILL)
    texts = []
    for first, rest in zip(begun, streams, strict=True):
        events = [first, *[event async for event in rest]]
        texts.append([token for event in events for token in event.chunk.token_ids])
    assert texts == calm
    assert scraped(tandem.metrics_url)["tandem_request_resumes_total"] > 0
    await services.assert_no_session_is_left()


def round_workers() -> list[psutil.Process]:
    """The Ray actors that this process started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if child.cmdline()[:1] == ["ray::RoundWorker"]:
                found.append(child)
    assert found
    return found


async def test_a_lost_drafter_leaves_plain_decoding(embedded: Pair) -> None:
    async with serve_models(embedded) as services, serve_all(services, ray=False) as tandem:
        request = ask("Once upon a time", tokens=40)
        before = await tandem.stub.Generate(request)
        alone = Services(
            services.pair,
            "127.0.0.1:1",
            services.verifier,
            services.drafter_client,
            services.verifier_client,
        )
        async with serve_all(alone, ray=False, start_seconds=3) as lame:
            after = await lame.stub.Generate(request)
            status = await lame.stub.GetStatus(api.GetStatusRequest())
    assert after.text == before.text
    assert after.speculation.num_draft_tokens == 0
    figures = after.speculation
    assert figures.fallback_rounds == figures.num_spec_steps == 40
    assert figures.num_steps_with_guesses == figures.drafter_switches == 0
    assert [replica.serving for replica in status.models[0].drafters] == [False]


def scraped(url: str) -> dict[str, float]:
    """Counters as Prometheus sees them, summed over their labels."""
    with urllib.request.urlopen(url) as response:
        text = response.read().decode()
    found = defaultdict[str, float](float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


async def test_metrics_equal_the_sums_over_the_answers(
    services: Services, prompts: list[str]
) -> None:
    """50 requests, streamed and not, greedy and sampled, drafted and not, some ended by a stop
    string.
    """
    async with serve_all(services, ray=False) as tandem:
        requests = [
            ask(p, temperature=n % 2, seed=n, tokens=10 + n) for n, p in enumerate(prompts[:50])
        ]
        for n, request in enumerate(requests):
            if n % 5 == 0:
                request.speculation.num_speculative_tokens = 0
            if n % 7 == 0:
                request.stopping.stop.append(".")
        answers = await asyncio.gather(*(tandem.stub.Generate(request) for request in requests))
        async with asyncio.timeout(60):
            while not any(answer.speculation.num_accepted_draft_tokens for answer in answers):
                answers.append(await tandem.stub.Generate(ask("Once there was", tokens=100)))
        seen = scraped(tandem.metrics_url)
    figures = [answer.speculation for answer in answers]
    for name, field in (
        ("steps", "num_spec_steps"),
        ("spec_decode_num_drafts", "num_steps_with_guesses"),
        ("speculation_fallback", "fallback_rounds"),
        ("spec_decode_num_draft_tokens", "num_draft_tokens"),
        ("spec_decode_num_accepted_tokens", "num_accepted_draft_tokens"),
        ("spec_decode_num_late_tokens", "num_late_draft_tokens"),
        ("spec_decode_num_unused_tokens", "num_unused_draft_tokens"),
    ):
        assert seen[f"tandem_{name}_total"] == sum(getattr(f, field) for f in figures)
    assert seen["tandem_spec_decode_num_accepted_tokens_total"] > 0
    assert seen["tandem_spec_decode_num_expected_tokens_total"] > 0
    assert seen["tandem_generation_tokens_total"] == sum(a.usage.completion_tokens for a in answers)
    assert seen["tandem_generation_tokens_total"] == sum(len(a.token_ids) for a in answers)
    assert seen["tandem_prompt_tokens_total"] == sum(a.usage.prompt_tokens for a in answers)
    assert seen["tandem_num_requests_running"] == seen["tandem_num_requests_waiting"] == 0
    assert seen["tandem_e2e_request_latency_seconds_count"] == len(answers)
