"""The front end's counters equal what its clients saw: all answers and all status codes,
exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry, generate_latest

from tandem import models
from tandem.orchestrator.fleet.membership import Acceptance
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.servicer import OrchestratorService
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.checks import ServedModel
from tandem.orchestrator.requests.text import load_tokenizer
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.orchestrator.rounds.step import Fallback, Step
from tandem.orchestrator.server import ANSWERING
from tandem.protos.errors import Internal
from tandem.protos.service.drain import Drain
from tandem.protos.transport import rpc
from tandem.protos.transport.calls import CallMetrics
from tandem.protos.types import DraftShape, ModelDescription
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.services.runner import Runner, step
from tests.waiting import until

TOKENIZER: Any = load_tokenizer(models.TARGET)
# number of tokens of an answer, and the prompts that make a request hang or break
TOKENS, HANG, BREAK = 40, 11, 12
DRAFTERS = GOOD, BAD = "a:1", "b:2"  # no draft of BAD is accepted
Ask = Callable[[], Awaitable[Any]]


class Drafting(Runner):
    """A runner that yields steps as a verifier and a drafter might make them."""

    async def steps(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        chance, at = random.Random(request.sampling.seed), len(request.completion)
        if request.prompt[0] == BREAK:
            raise Internal("a bug")
        drafter, told = chance.choice(DRAFTERS), ""
        while at < TOKENS:
            accepted = min(chance.randrange(4), TOKENS - at - 1)
            if drafter == BAD:
                accepted = 0
            drafted = accepted + chance.randrange(3) if accepted or drafter == BAD else 0
            at += accepted + 1
            fallback = None if drafted else chance.choice(list(Fallback))
            finish = Finish.LENGTH if at == TOKENS else None
            tokens = (7,) * (accepted + 1)
            known = {"drafted": drafted, "accepted": accepted, "finish": finish, "seconds": 0.01}
            newly = drafter if drafter != told else ""
            yield step(*tokens, **known, fallback=fallback, drafter=newly)
            told = drafter
            await asyncio.sleep(0)
            if request.prompt[0] == HANG:
                await asyncio.Event().wait()


@dataclass
class Front:
    """A client of a front end, and the front end's counters."""

    stub: Any
    channel: aio.Channel
    registry: CollectorRegistry
    acceptance: Acceptance

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name with these labels."""
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"tandem_{name}" and labels.items() <= sample.labels.items()
        )

    async def until(self, name: str, count: int) -> None:
        """Wait for a count: a call is counted when it ends, perhaps after its caller has the
        answer.
        """
        await until(lambda: self.total(name) >= count)


@asynccontextmanager
async def front(running: int = 64) -> AsyncIterator[Front]:
    size, registry = TOKENIZER.get_vocab_size(), CollectorRegistry()
    model = ModelDescription("tiny", "", size, 512, (0,), "", "", exactness="exact")
    served, acceptance = ServedModel(model, DraftShape(4), 8192, {}), Acceptance()
    acceptance.retain(DRAFTERS)
    metrics = FrontMetrics(registry, acceptance)
    each = Limits(running, running, "_per_client")
    admission = Admission(Limits(running, running), each, metrics)
    answers = Answers(Drafting(), TOKENIZER, served, metrics, admission)
    service = OrchestratorService(answers, cast(Any, None), Drain(1), RequestLog())
    calls = CallMetrics(registry, dict.fromkeys(ANSWERING, metrics.ended))
    async with (
        rpc.serving("127.0.0.1", 0, service, calls=calls) as address,
        rpc.connect(address) as channel,
    ):
        stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
        yield Front(stub, channel, registry, acceptance)


def asked(seed: int, prompt: int = 5, most: int = TOKENS) -> api.GenerateRequest:
    return api.GenerateRequest(
        token_ids=api.TokenIds(ids=[prompt] * (1 + seed % 3)),
        sampling=api.Sampling(seed=seed),
        stopping=api.Stopping(max_new_tokens=most, ignore_eos=True),
    )


async def test_counters_are_the_sums_over_the_answers() -> None:
    async with front() as served:
        requests = [asked(seed, most=TOKENS - seed % 5) for seed in range(60)]
        answers = await asyncio.gather(*map(served.stub.Generate, requests))
        await served.until("requests_total", 60)
        figures = [answer.speculation for answer in answers]
        for name, field in (
            ("steps_total", "num_spec_steps"),
            ("spec_decode_num_drafts_total", "num_steps_with_guesses"),
            ("speculation_fallback_total", "fallback_rounds"),
            ("spec_decode_num_draft_tokens_total", "num_draft_tokens"),
            ("spec_decode_num_accepted_tokens_total", "num_accepted_draft_tokens"),
            ("spec_decode_num_accepted_tokens_per_pos_total", "num_accepted_draft_tokens"),
        ):
            assert served.total(name) == sum(getattr(each, field) for each in figures), name
        tokens = sum(len(answer.token_ids) for answer in answers)
        assert served.total("generation_tokens_total") == tokens
        assert served.total("request_generation_tokens_sum") == tokens
        prompts = sum(len(request.token_ids.ids) for request in requests)
        assert served.total("prompt_tokens_total") == prompts
        assert served.total("request_success_total", finished_reason="length") == 60
        assert served.total("requests_total", code="OK") == 60
        good, bad = map(served.acceptance.of, DRAFTERS)
        assert bad == (sum(each.num_draft_tokens for each in figures) - good[0], 0) != (0, 0)
        assert good[1] == sum(each.num_accepted_draft_tokens for each in figures)


async def test_every_request_is_counted_once_by_the_status_that_its_client_got() -> None:
    async with front(running=1) as served:
        stub = served.stub

        async def undecodable() -> None:
            await served.channel.unary_unary(ANSWERING[0])(b"\xff\xff\xff")

        asks: list[Ask] = [undecodable] * 2
        asks += [lambda: stub.Generate(asked(1, HANG), timeout=0.5)]
        asks += [lambda: stub.Generate(asked(1, BREAK))] * 2
        asks += [lambda: stub.Generate(asked(1, most=10_000))] * 2
        asks += [lambda: stub.Generate(asked(1))] * 3
        found = Counter([await status_of(ask) for ask in asks])
        hanging = [
            stub.StreamGenerate(api.StreamGenerateRequest(request=asked(seed, HANG)))
            for seed in range(2)
        ]
        # one request waits, and the other runs
        await until(lambda: served.total("num_requests_waiting") == 1)
        found.update([await status_of(lambda: stub.Generate(asked(1))) for _ in range(3)])
        for call in hanging:
            call.cancel()
            found.update([await status_of(call.read)])
        assert found == {
            "OK": 3,
            "CANCELLED": 2,
            "DEADLINE_EXCEEDED": 1,
            "INTERNAL": 2,
            "INVALID_ARGUMENT": 4,
            "RESOURCE_EXHAUSTED": 3,
        }
        await served.until("requests_total", found.total())
        await served.until("rpc_total", found.total())
        for code, count in found.items():
            assert served.total("requests_total", code=code) == count, code
            assert served.total("rpc_total", code=code) == count, code
        assert served.total("requests_total") == found.total()
        assert served.total("num_requests_running") == served.total("num_requests_waiting") == 0


async def status_of(ask: Ask) -> str:
    try:
        await ask()
    except aio.AioRpcError as error:
        return str(error.code().name)
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


async def test_names_that_clients_invent_add_no_series() -> None:
    """The names are those of methods, models, requests and clients."""
    async with front() as served:
        before = series(served.registry)

        async def call(number: int) -> None:
            request = asked(number)
            request.request_id = request.model = f"odd-{number}"
            metadata = (("x-tandem-client", f"odd-{number}"), ("x-request-id", f"odd-{number}"))
            method = served.channel.unary_unary(f"/odd.Service{number}/Method{number}")
            with suppress(aio.AioRpcError):
                await served.stub.Generate(request, metadata=metadata)
            with pytest.raises(aio.AioRpcError) as refused:
                await method(b"", metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

        await asyncio.gather(*map(call, range(100)))
        await served.until("requests_total", 100)
        assert served.total("rpc_total", code="UNIMPLEMENTED") == 100
        assert series(served.registry) == before <= 2000


def series(registry: CollectorRegistry) -> int:
    """Return the samples on the page, without their values; a series exists from the start for
    every known label value.
    """
    lines = generate_latest(registry).decode().splitlines()
    return sum(not line.startswith("#") for line in lines)
