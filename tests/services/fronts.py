"""A front end over real gRPC with one place, whose requests run as a test tells them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from tandem import models
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.membership import Membership
from tandem.orchestrator.fleet.registration import Registry
from tandem.orchestrator.fleet.replicas import Replicas
from tandem.orchestrator.frontend.admission import Admission, Limits
from tandem.orchestrator.frontend.answers import Answers
from tandem.orchestrator.frontend.request_log import RequestLog
from tandem.orchestrator.frontend.servicer import OrchestratorService
from tandem.orchestrator.frontend.status import Overview, Recorder
from tandem.orchestrator.http.delivery import Frontend
from tandem.orchestrator.metrics import FrontMetrics
from tandem.orchestrator.requests.checks import ServedModel
from tandem.orchestrator.rounds.generation import Finish, RunRequest
from tandem.orchestrator.rounds.step import Step
from tandem.protos.service.drain import Drain
from tandem.protos.transport import rpc
from tandem.protos.transport.health import Health
from tandem.protos.transport.interceptor import REQUEST_ID
from tandem.protos.types import DraftShape, ModelDescription
from tandem.v1 import orchestrator_pb2 as api
from tandem.v1 import orchestrator_pb2_grpc
from tests.services.runner import Runner, step
from tests.services.test_answers import END, SCRIPT, TOKENIZER
from tests.waiting import until

SECRET = "the name of a client"
STEPS = ((3, 2), (0, 0), (2, 0))  # drafted, accepted
PROMPT = "A secret text"


class Drafting(Runner):
    """A runner that accepts drafts as in STEPS, and pauses before the last step until it may go
    on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.reached = asyncio.Event()
        self.broken = False

    async def steps(self, request: RunRequest) -> AsyncGenerator[Step, None]:
        tokens = iter(SCRIPT)
        for drafted, accepted in STEPS:
            fresh = [next(tokens) for _ in range(accepted + 1)]
            yield step(*fresh, drafted=drafted, accepted=accepted)
            await asyncio.sleep(0)
        self.reached.set()
        await self.go.wait()
        if self.broken:
            raise RuntimeError("a bug")
        yield step(END, finish=Finish.STOP, matched_token_id=END, verifier_switches=1)


@dataclass
class Front:
    """A front end over real gRPC, with one place and no queue."""

    stub: Any
    runner: Drafting
    drain: Drain
    lines: list[dict[str, Any]]
    http: Frontend  # the front end of an HTTP port
    registry: CollectorRegistry

    async def ask(self, *metadata: tuple[str, str], request_id: str = "") -> api.GenerateResponse:
        request = api.GenerateRequest(text=PROMPT, request_id=request_id)
        call = self.stub.Generate(request, metadata=metadata)
        response = await call
        sent = dict(await call.initial_metadata())[REQUEST_ID]
        assert sent == response.request_id
        return response

    async def ended(self, count: int) -> list[dict[str, Any]]:
        """Return the log lines of requests once there are this many; a call may end before its
        handler.
        """

        def requests() -> list[dict[str, Any]]:
            return [line for line in self.lines if line["event"].startswith("a request ")]

        await until(lambda: len(requests()) >= count)
        found = requests()
        assert len(found) == count
        assert PROMPT not in str(self.lines) and SECRET not in str(self.lines)
        return found


@asynccontextmanager
async def served() -> AsyncIterator[Front]:
    model = ModelDescription(
        "tiny", "", TOKENIZER.get_vocab_size(), 512, (END,), "", "", exactness="exact"
    )
    runner, drain, ends = Drafting(), Drain(), RequestLog()
    registry = CollectorRegistry()
    metrics = FrontMetrics(registry)
    config = OrchestratorConfig(verifier="127.0.0.1:1", tokenizer=models.TARGET)
    merge = structlog.contextvars.merge_contextvars
    with capture_logs(processors=[merge]) as lines:
        admission = Admission(Limits(1, 0), Limits(1, 0, "_per_client"), metrics)
        shown = ServedModel(model, DraftShape(4), 512 * 16, {})
        answers = Answers(runner, TOKENIZER, shown, metrics, admission)
        recorder = Recorder(metrics, admission, ends)
        replicas = Replicas(config, Membership(), Registry(str, str))
        overview = Overview(replicas, admission, recorder, Health())
        service = OrchestratorService(answers, overview, drain, ends)
        async with (
            rpc.serving("127.0.0.1", 0, service) as address,
            rpc.connect(address) as channel,
        ):
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            http = Frontend(answers, drain, ends, lambda: True)
            yield Front(stub, runner, drain, lines, http, registry)
