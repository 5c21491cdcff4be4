"""The client API: text in, text out, as it grows.

Admits requests, runs them on the worker pool, turns tokens into text and counts. Owns the tokens
streamed so far, so a lost worker costs a resume and never an error at the client.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

from grpc import aio
from tokenizers import Tokenizer

from orchestrator.fleet.replicas import Replicas
from orchestrator.frontend.answer import Answer
from orchestrator.frontend.request import Limits, check_resumable, order
from orchestrator.frontend.text import TextStream
from orchestrator.metrics import FrontMetrics
from orchestrator.workers.pool import WorkerPool
from protos.errors import Busy
from protos.tandem.v1 import orchestrator_pb2 as api
from protos.tandem.v1 import orchestrator_pb2_grpc
from protos.wire import codec

NAME = api.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
LARGEST_SEED = 1 << 53  # JSON's numbers are exact below it
CLIENT_KEY = "x-tandem-client"
Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Event = api.StreamGenerateResponse


class Admission:
    """Bounds the requests that are decoded and those that wait for a place."""

    def __init__(self, max_running: int, max_waiting: int, metrics: FrontMetrics) -> None:
        self._places = asyncio.Semaphore(max_running)
        self._max_waiting = max_waiting
        self.running = 0
        self.waiting = 0
        metrics.running.set_function(lambda: self.running)
        metrics.waiting.set_function(lambda: self.waiting)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place in the running set; raises Busy when too many wait."""
        if self._places.locked() and self.waiting >= self._max_waiting:
            raise Busy(f"{self.waiting} requests are waiting", retry_after=0.5)
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()


class OrchestratorService(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Serves one model."""

    def __init__(
        self,
        pool: WorkerPool,
        replicas: Replicas,
        tokenizer: Tokenizer,
        limits: Limits,
        metrics: FrontMetrics,
        admission: Admission,
    ) -> None:
        self._pool, self._replicas, self._tokenizer = pool, replicas, tokenizer
        self._limits, self._metrics, self._admission = limits, metrics, admission

    async def Generate(
        self, request: api.GenerateRequest, context: Context
    ) -> api.GenerateResponse:
        """The whole answer: the last event of the stream."""
        async with aclosing(self._events(request, client_of(context))) as events:
            return [event.complete async for event in events if event.HasField("complete")][-1]

    async def StreamGenerate(
        self, request: api.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[Event]:
        """The answer as it grows; the tokens that the client has already are not sent again."""
        check_resumable(request, self._limits.model)
        client = client_of(context)
        async with aclosing(self._events(request.request, client, request.resume_from)) as events:
            async for event in events:
                if event.HasField("complete") or event.chunk.token_ids:
                    yield event

    async def GetStatus(
        self, request: api.GetStatusRequest, context: Context
    ) -> api.GetStatusResponse:
        """What is served and how it is doing."""
        return await self._replicas.status(self._admission.running, self._admission.waiting)

    async def _events(
        self, request: api.GenerateRequest, client: bytes, known: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Chunks without the `known` first tokens, then the complete answer."""
        request_id = request.request_id or secrets.token_hex(8)
        if not request.sampling.HasField("seed"):
            request.sampling.seed = secrets.randbelow(LARGEST_SEED)
        run = await asyncio.to_thread(order, request, request_id, self._limits, self._tokenise)
        run.session_id = secrets.token_bytes(codec.SESSION_ID_BYTES)
        run.client = client
        stopping = request.stopping
        stream = TextStream(self._tokenizer, run.prompt, stopping.stop, stopping.min_new_tokens)
        answer = Answer(run, stream, request.sampling.seed, self._metrics, known)
        async with self._admission.place():
            answer.started()
            async with aclosing(self._pool.run(run)) as steps:
                async for step in steps:
                    chunk = answer.add(step)
                    yield Event(chunk=chunk)
                    if answer.finished:
                        break
        yield Event(complete=answer.complete())

    def _tokenise(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)


def client_of(context: Context) -> bytes:
    """Who asks, as a digest: requests of one client may start from each other's cached beginnings.
    Empty for a client that does not name itself; a name that others cannot guess keeps them out.
    """
    name = str(dict(context.invocation_metadata() or ()).get(CLIENT_KEY, ""))
    return hashlib.sha256(name.encode()).digest()[:16] if name else b""
