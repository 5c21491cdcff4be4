"""A round worker: runs the rounds of many generations and streams what each adds.

Has no state of a request: it carries its tokens so far, so a worker may die at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog
from grpc import aio
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_fixed

from orchestrator.clients import DrafterClient, VerifierClient
from orchestrator.generation import Cursor, Generation
from orchestrator.goodput import Goodput, Load
from orchestrator.lookup import Lookup
from orchestrator.policy import Policy
from orchestrator.ports import Drafter, Verifier
from orchestrator.rounds import Round, run_round
from protos import codec, rpc
from protos.drafting import decode_choice, decode_shape
from protos.errors import TandemError
from protos.sampling import decode_sampling
from protos.status import is_transient
from protos.tandem.v1 import orchestrator_pb2, rounds_pb2, rounds_pb2_grpc
from protos.types import Method, Rule, Schedule

NAME = rounds_pb2.DESCRIPTOR.services_by_name["RoundWorkerService"].full_name
CELL_KEY = "x-tandem-cell"
CLOSING = AsyncRetrying(
    retry=retry_if_exception(is_transient),
    wait=wait_fixed(0.2),
    stop=stop_after_attempt(3),
    reraise=True,
)

log = structlog.get_logger()
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class RoundWorkerService(rounds_pb2_grpc.RoundWorkerServiceServicer):
    """Serves the front end of its own cell only."""

    def __init__(self, drafter: Drafter, verifier: Verifier) -> None:
        self._drafter, self._verifier = drafter, verifier
        self._lookup = Lookup(epoch=secrets.randbelow((1 << 32) - 1) + 1)
        self._load = Load()
        self._goodput = {way: Goodput(self._load) for way in itertools.product(Method, Rule)}
        self._closing: set[asyncio.Task[None]] = set()

    async def Run(
        self, request: rounds_pb2.RunRequest, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[rounds_pb2.RunResponse]:
        """Rounds until the generation ends; whatever ends it, its sessions are closed."""
        generation = Generation(
            session_id=codec.decode_session_id("session_id", request.session_id),
            prompt=tuple(request.prompt),
            sampling=decode_sampling(request.sampling),
            max_new_tokens=request.max_new_tokens,
            stop_token_ids=frozenset(request.stop_token_ids),
            completion=list(request.completion),
            client=request.client,
            drafter=Cursor(request.first_turn),
            verifier=Cursor(request.first_turn),
        )
        shape = decode_shape(request.shape)
        schedule = decode_choice("schedule", Schedule, request.schedule)
        goodput = self._goodput[shape.method, generation.sampling.rule]
        policy = Policy.of(shape, schedule, goodput)
        drafter = self._lookup if shape.method is Method.NGRAM else self._drafter
        decides = schedule is Schedule.GOODPUT and policy.wants_draft
        goodput.running += decides
        self._load.running += 1
        try:
            while generation.finish is None:
                done = await run_round(generation, drafter, self._verifier, policy)
                yield encode_round(done, generation)
        finally:
            goodput.running -= decides
            self._load.running -= 1
            services = (self._verifier, drafter) if policy.wants_draft else (self._verifier,)
            closing = asyncio.create_task(self._close(generation.session_id, services))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def drained(self) -> None:
        """Wait until every session that is being closed is closed."""
        await asyncio.gather(*self._closing)

    async def _close(self, session_id: bytes, services: Sequence[Drafter | Verifier]) -> None:
        for service in services:
            try:
                async for attempt in CLOSING.copy():
                    with attempt:
                        await service.close(session_id)
            except TandemError as error:  # the service reclaims idle sessions by itself
                log.warning("a session was not closed", reason=error.reason)


def encode_round(done: Round, generation: Generation) -> rounds_pb2.RunResponse:
    """A round as a message."""
    finish = generation.finish
    return rounds_pb2.RunResponse(
        tokens=done.advance.tokens,
        drafted=done.advance.drafted,
        accepted=done.advance.accepted,
        reused=done.advance.reused,
        logprobs=[codec.encode_logprobs(each) for each in done.advance.logprobs],
        fallback=done.fallback,
        finish_reason=orchestrator_pb2.FinishReason.ValueType(finish.value if finish else 0),
        matched_token_id=generation.matched_token_id,
        timing=rounds_pb2.RoundTiming(
            propose_seconds=done.propose_seconds,
            verify_seconds=done.verify_seconds,
            advance_seconds=done.advance_seconds,
        ),
    )


class CellGuard(aio.ServerInterceptor):
    """Refuses whoever does not know the cell's key: a worker's port is for its own front end."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Called by gRPC once per call."""
        given = str(dict(details.invocation_metadata or ()).get(CELL_KEY, ""))
        if secrets.compare_digest(given, self._key):
            return await continuation(details)

        async def refuse(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a member of this cell")

        return grpc.unary_unary_rpc_method_handler(refuse)


@asynccontextmanager
async def serving(host: str, verifier: str, drafter: str, key: str) -> AsyncIterator[str]:
    """A round worker on a free port while the scope lasts; yields its address."""
    async with rpc.connect(verifier) as to_verifier, rpc.connect(drafter) as to_drafter:
        service = RoundWorkerService(DrafterClient(to_drafter), VerifierClient(to_verifier))
        services = {
            NAME: lambda s: rounds_pb2_grpc.add_RoundWorkerServiceServicer_to_server(service, s)
        }
        async with rpc.serving(host, 0, services, CellGuard(key)) as address:
            yield address
        await service.drained()
