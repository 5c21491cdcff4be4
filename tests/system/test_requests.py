"""What a client sees: streams, stops, figures, reused prefixes, and answers without drafts if there
is no drafter.
"""

from __future__ import annotations

import asyncio
import secrets
import urllib.request
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tandem.drafter_service import service as drafter_service
from tandem.engine.cache.pages import PAGE
from tandem.engine.config import ModelServiceConfig
from tandem.protos.transport import rpc
from tandem.v1 import orchestrator_pb2 as api
from tests.served import Services, Tandem, serve_all
from tests.system.test_same_text import ask
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("nothing_left")

LONG = tuple(5 + 7 * place % 4000 for place in range(200))


def stream(request: api.GenerateRequest, received: Sequence[int] = ()) -> api.StreamGenerateRequest:
    return api.StreamGenerateRequest(request=request, received=received)


async def test_a_stream_adds_up_to_the_answer(tandem: Tandem) -> None:
    asked = stream(ask("Once upon a time", tokens=40))
    events = [event async for event in tandem.stub.StreamGenerate(asked)]
    chunks, last = [event.chunk for event in events[:-1]], events[-1].complete
    assert "".join(chunk.text for chunk in chunks) == last.text
    assert [token for chunk in chunks for token in chunk.token_ids] == list(last.token_ids)
    assert chunks[-1].completion_tokens == last.usage.completion_tokens == len(last.token_ids)
    assert len(chunks) == last.speculation.num_spec_steps
    assert (chunks[0].request_id, chunks[0].seed) == (last.request_id, last.seed)
    assert not any(chunk.request_id or chunk.HasField("seed") for chunk in chunks[1:])
    assert last.finish_reason in (api.FINISH_REASON_STOP, api.FINISH_REASON_LENGTH)


@pytest.mark.parametrize("seen", [0, 1, 7, 20])
async def test_a_broken_stream_resumes_where_the_client_stopped(tandem: Tandem, seen: int) -> None:
    request = ask("The king said", temperature=1.0, seed=9, tokens=20)
    whole = await tandem.stub.Generate(request)
    rest = stream(request, whole.token_ids[:seen])
    events = [event async for event in tandem.stub.StreamGenerate(rest)]
    tokens = [token for event in events[:-1] for token in event.chunk.token_ids]
    assert tokens == list(whole.token_ids)[seen:]
    text = "".join(event.chunk.text for event in events[:-1])
    assert whole.text.endswith(text)
    assert events[-1].complete.text == whole.text


async def test_a_special_token_ends_the_text_as_a_stop_string_too(tandem: Tandem) -> None:
    request = ask("A", tokens=9)
    request.sampling.logit_bias[0] = 100
    request.stopping.ignore_eos = True
    assert len((await tandem.stub.Generate(request)).token_ids) == 9
    request.stopping.stop.append("<|endoftext|>")
    answer = await tandem.stub.Generate(request)
    assert (answer.finish_reason, list(answer.token_ids)) == (api.FINISH_REASON_STOP, [0])


async def test_seeds_that_the_server_picks_are_reported_and_reproduce(tandem: Tandem) -> None:
    request = ask("In the garden", temperature=1.0, tokens=16)
    first = await tandem.stub.Generate(request)
    assert first.seed < 2**53, "which JSON can carry"
    request.sampling.seed = first.seed
    assert (await tandem.stub.Generate(request)).text == first.text


@pytest.mark.usefixtures("waited_for")
async def test_without_a_drafter_texts_are_decoded_plainly_and_one_that_comes_is_used(
    tandem: Tandem, services: Services
) -> None:
    request = ask("Once upon a time", tokens=24)
    request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
    before = await tandem.stub.Generate(request)
    drafter = ModelServiceConfig(
        model=services.pair.draft, port=rpc.free_port("127.0.0.1"), threads=1
    )
    alone = replace(services, drafter=f"127.0.0.1:{drafter.port}")
    async with serve_all(alone) as lame:

        async def drafts() -> bool:
            (model,) = (await lame.stub.GetStatus(api.GetStatusRequest())).models
            return [replica.serving for replica in model.drafters] == [True]

        assert not await drafts()
        plain = await lame.stub.Generate(request)
        async with drafter_service.serving(drafter, CollectorRegistry()):
            await until(drafts, "the drafter serves")
            after = await lame.stub.Generate(request)
    assert plain.text == before.text == after.text
    figures = plain.speculation
    assert figures.fallback_rounds == figures.num_spec_steps == 24
    assert figures.num_steps_with_guesses == figures.num_draft_tokens == 0
    assert figures.drafter_switches == 0
    figures = after.speculation
    assert figures.num_steps_with_guesses == figures.num_spec_steps < 24


def scraped(url: str) -> dict[str, float]:
    """Return counters as Prometheus sees them, summed over their labels."""
    with urllib.request.urlopen(url) as response:
        text = response.read().decode()
    found = defaultdict[str, float](float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


@pytest.mark.usefixtures("waited_for")
async def test_metrics_equal_the_sums_over_the_answers(
    services: Services, prompts: list[str]
) -> None:
    """The requests are greedy and sampled, drafted and not, in lockstep and not; some end at a stop
    string.
    """
    async with serve_all(services) as tandem:
        requests = [
            ask(p, temperature=n % 2, seed=n, tokens=8 + n) for n, p in enumerate(prompts[:15])
        ]
        for n, request in enumerate(requests):
            if n % 5 == 0:
                request.speculation.num_speculative_tokens = 0
            if n % 3 == 1:
                request.speculation.rule = api.ACCEPTANCE_RULE_TOP1
            if n % 7 == 0:
                request.stopping.stop.append(".")
        answers = await asyncio.gather(*(tandem.stub.Generate(request) for request in requests))
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


async def completed(
    tandem: Tandem, tail: tuple[int, ...], client: str = "", salt: str = ""
) -> api.GenerateResponse:
    request = api.GenerateRequest(
        token_ids=api.TokenIds(ids=LONG + tail),
        sampling=api.Sampling(temperature=0),
        stopping=api.Stopping(max_new_tokens=6),
        cache_salt=salt,
    )
    metadata = (("x-tandem-client", client),) if client else ()
    return await tandem.stub.Generate(request, metadata=metadata)


async def test_a_long_beginning_is_read_once_in_a_scope(tandem: Tandem) -> None:
    """The scopes are that of clients without a name, that of a named client, and that of a named
    client with a salt.
    """
    name, whole = secrets.token_hex(8), len(LONG) // PAGE * PAGE
    texts = set[str]()
    for client, salt in (("", ""), (name, ""), (name, "s"), ("", "s"), ("", "t")):
        first = await completed(tandem, (900, 901), client, salt)
        again = await completed(tandem, (902,), client, salt)
        assert first.usage.cached_tokens == 0
        assert whole <= again.usage.cached_tokens <= len(LONG)
        texts.add(again.text)
    assert len(texts) == 1
