"""What the tests share: the embedded pair, tiny random pairs, and real services on loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
import transformers
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM, PreTrainedModel

import tandem.drafter_service.service
import tandem.models
import tandem.verifier_service.service
from tandem import models
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.orchestrator import server
from tandem.orchestrator.config import OrchestratorConfig
from tandem.orchestrator.fleet.clients import DrafterClient, VerifierClient
from tandem.orchestrator.rounds.lockstep import WaitPolicy
from tandem.protos.service.pages import Pages, pages_served
from tandem.protos.transport import heartbeat, rpc
from tandem.v1 import orchestrator_pb2_grpc
from tandem.verifier_service import service as verifier_service
from tests.families import build
from tests.ggufs import MakeGGUF, maker
from tests.scripted import saying, tokens_of
from tests.waiting import LIMIT, until

PROMPTS = Path(__file__).parents[1] / "benchmarks" / "peers" / "story_prompts.jsonl"
# Names of tasks that are not counted: tasks of servers, tasks that watch servers, and tasks that
# belong to a counted task.
SERVERS_TASKS = ("grpcio", "StreamServer.", "is_serving", "until_silent", "_wait.<")
# tasks of replicas, counted once replicas are known
SERVERS_TASKS += ("PerAddress._keep", "Link._run")

# tests of lost peers set their own limit; on a slow machine no peer counts as lost
heartbeat.MAX_MISSED = 1000
# no deadline, because a slow machine is no failure
hypothesis.settings.register_profile("tandem", deadline=None)
hypothesis.settings.load_profile("tandem")
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


@dataclass(frozen=True)
class Pair:
    """The directories of a target and a draft model."""

    target: Path
    draft: Path


@dataclass(frozen=True)
class Services:
    """A drafter and a verifier that serve."""

    pair: Pair
    drafter: str
    verifier: str
    drafter_client: DrafterClient
    verifier_client: VerifierClient

    async def assert_no_session_is_left(self) -> None:
        """The check waits, because closing is asynchronous."""
        for client in (self.drafter_client, self.verifier_client):

            async def closed(client: DrafterClient | VerifierClient = client) -> bool:
                return not (await client.describe(LIMIT)).sessions

            await until(closed, "no session is left")


@dataclass(frozen=True)
class Tandem:
    """A whole system: services, an orchestrator and its clients."""

    services: Services
    stub: Any
    metrics_url: str
    address: str


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Return 80 beginnings of stories."""
    return [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def embedded() -> Pair:
    """Return the trained pair that ships with the project."""
    return Pair(models.TARGET, models.DRAFT)


@pytest.fixture(scope="session")
def target(embedded: Pair) -> PreTrainedModel:
    """Return the trained target as transformers runs it, without code of this project."""
    return AutoModelForCausalLM.from_pretrained(embedded.target, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """Return a function that makes a tiny random model directory of a family, with the embedded
    tokenizer.
    """

    @cache
    def make(family: str, seed: int) -> Path:
        folder = tmp_path_factory.mktemp(f"{family}-{seed}-", numbered=True)
        build(family, seed).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(models.TARGET / name, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Pair]:
    """Return a function that makes a target which answers a prompt of one token with a given text,
    and a drafter whose every n-th token is wrong. With n = 0, none is.
    """

    @cache
    def say(text: str, wrong_every: int) -> Path:
        return saying(tmp_path_factory.mktemp("scripted"), tokens_of(text), wrong_every)

    return lambda text, wrong_every: Pair(say(text, 0), say(text, wrong_every))


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make requests in lockstep wait for every proposal, however long a drafter takes."""
    monkeypatch.setattr(WaitPolicy, "wait_seconds", LIMIT)


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> MakeGGUF:
    """Return a function that makes a GGUF file of a type from a model directory."""
    return maker(tmp_path_factory.mktemp("gguf"))


@asynccontextmanager
async def serve_models(
    pair: Pair, drafting: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Services]:
    """Run a real drafter and a real verifier on loopback; `drafting` are options of the drafter."""
    async with AsyncExitStack() as scope:
        addresses, channels = [], []
        for module, folder, own in (
            (drafter_service, pair.draft, drafting or {}),
            (verifier_service, pair.target, {}),
        ):
            config = ModelServiceConfig(**{"model": folder, "threads": 1} | options | own)
            address = await scope.enter_async_context(module.serving(config, CollectorRegistry()))
            addresses.append(address)
            channels.append(await scope.enter_async_context(rpc.connect(address)))
        drafter, verifier = DrafterClient(channels[0]), VerifierClient(channels[1])
        services = Services(pair, addresses[0], addresses[1], drafter, verifier)
        yield services
        await services.assert_no_session_is_left()


@asynccontextmanager
async def serve_all(services: Services, **options: Any) -> AsyncIterator[Tandem]:
    """Run an orchestrator in front of the services."""
    config = OrchestratorConfig(
        verifier=services.verifier,
        drafter=services.drafter,
        tokenizer=services.pair.target,
        port=0,
        **options,
    )
    registry = CollectorRegistry()
    with pages_served("127.0.0.1", 0, Pages(registry)) as metrics:
        async with server.serving(config, registry) as address, rpc.connect(address) as channel:
            stub = orchestrator_pb2_grpc.OrchestratorServiceStub(channel)
            yield Tandem(services, stub, f"http://{metrics}/metrics", address)


@pytest.fixture(scope="session")
async def services(embedded: Pair) -> AsyncIterator[Services]:
    """Serve the embedded pair."""
    async with serve_models(embedded) as services:
        yield services


@pytest.fixture(scope="session")
async def tandem(services: Services) -> AsyncIterator[Tandem]:
    """Run the whole system on the embedded pair, in this process."""
    async with serve_all(services) as tandem:
        yield tandem


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, also in a background job, for which a shell disables
    it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
async def nothing_left(services: Services) -> AsyncIterator[None]:
    """Fail the test if it leaves a session or a task behind."""
    before = asyncio.all_tasks()
    yield
    await services.assert_no_session_is_left()

    def ended() -> bool:
        ours = asyncio.all_tasks() - before - {asyncio.current_task()}
        return all(any(name in repr(task) for name in SERVERS_TASKS) for task in ours)

    await until(ended, "no task of the test is left")
