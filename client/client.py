"""The asyncio client.

Any front end can continue what another began: a stream that breaks is requested again, with the
tokens that have come, so that the caller sees one stream without a gap or a repetition.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from grpc import aio

from tandem.client.front_ends import FrontEnds, client_tls
from tandem.client.request import Prompt, build
from tandem.client.retry import Retry
from tandem.protos.address import check_encrypted
from tandem.protos.errors import (
    Busy,
    DeadlineExceeded,
    TandemError,
    TransportLost,
    Unavailable,
    Unusable,
)
from tandem.protos.service import tracing
from tandem.protos.service.tasks import first_done
from tandem.protos.transport import heartbeat, rpc, status
from tandem.protos.transport.guard import AUTHORIZATION
from tandem.protos.transport.status import is_cancelled
from tandem.v1 import orchestrator_pb2 as api

ADDRESS = "127.0.0.1:50051"
STATUS_SECONDS = 5.0
FEW = 2  # heartbeats that may fail to come where another front end answers again
EARLIEST = 0.25  # this much of a pause is waited for a front end that is connected again, too
UPLOAD_BYTES_PER_SECOND = 32 << 10  # of the slowest connection


class AsyncClient:
    """Asks the front ends at `addresses`: each request one that is chosen at random, of those that
    answer, and the next one if that fails or is full. A request is given up when nothing arrived
    for `retry_seconds`.

    `tls_ca` is the PEM file of the CA that the front ends' certificates are checked by; `tls_cert`
    and `tls_key` are those of a certificate of the client's own, `token` is what it has instead.
    """

    def __init__(
        self,
        *addresses: str,
        retry_seconds: float = 60.0,
        tls_ca: str | Path | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        """Raises Unusable for files that cannot be used, and for a token without `tls_ca` where it
        would leave this machine.
        """
        addresses, tls = addresses or (ADDRESS,), client_tls(tls_ca, tls_cert, tls_key)
        if token and not tls:
            try:
                check_encrypted("token", addresses)
            except ValueError as error:
                raise Unusable(str(error)) from None
        self.front_ends = FrontEnds(addresses, tls)
        self.metadata = ((AUTHORIZATION, f"Bearer {token}"),) if token else ()
        self.retry_seconds = retry_seconds

    async def generate(self, prompt: Prompt, **options: Any) -> api.GenerateResponse:
        """The whole answer; options and errors as of `stream`."""
        async with self.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
        assert stream.response is not None, "else it had raised"
        return stream.response

    def stream(
        self,
        prompt: Prompt,
        *,
        deadline_seconds: float | None = None,
        **options: Any,
    ) -> Stream:
        """An answer as it grows, to a text, to token ids or to messages of a chat. `options` are
        the fields of Sampling, Stopping and Speculation, by name, and `logprobs`,
        `prompt_logprobs`, `echo` and `return_token_ids`; those of a chat are as over HTTP:
        `tools`, `tool_choice`, `parallel_tool_calls`, `add_generation_prompt`,
        `continue_final_message`, `chat_template_kwargs`, `reasoning_effort`. `deadline_seconds` is
        for all of it. Raises TypeError for an option that there is not, InvalidRequest for a value
        that is none; iterating raises TandemError.
        """
        return Stream(self, build(prompt, **options), deadline_seconds)

    async def status(self, *, history: bool = False) -> api.GetStatusResponse:
        """What is served, as the first front end reports that answers, with the `history` of the
        last minutes if that is wanted; raises TandemError.
        """
        problem: TandemError | None = None
        check_open(self)
        numbers = range(len(self.front_ends))
        for number in sorted(numbers, key=self.front_ends.silent.__contains__):
            try:
                response: api.GetStatusResponse = await self.front_ends.stubs[number].GetStatus(
                    api.GetStatusRequest(history=history),
                    timeout=STATUS_SECONDS,
                    metadata=self.metadata,
                )
            except aio.AioRpcError as failure:
                problem = status.decode(failure)
            else:
                return response
        assert problem is not None
        raise problem

    async def close(self) -> None:
        """Close all connections; streams that run end with Unavailable."""
        await self.front_ends.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class Stream:
    """Chunks of an answer; `response` is the whole of it, after the last."""

    def __init__(
        self, client: AsyncClient, request: api.GenerateRequest, deadline_seconds: float | None
    ) -> None:
        now = time.monotonic()
        self.response: api.GenerateResponse | None = None
        self._client, self._request = client, request
        self._received: list[int] = []
        self._events, self._waiting = 0, True
        self._deadline = None if deadline_seconds is None else now + deadline_seconds
        fronts = client.front_ends
        self._retry = Retry(client.retry_seconds, now, len(fronts), fronts.choose())
        self._chunks = self._all()

    def __aiter__(self) -> AsyncIterator[api.Chunk]:
        return self._chunks

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Have the rest not generated."""
        await self._chunks.aclose()

    async def _all(self) -> AsyncGenerator[api.Chunk, None]:
        """Calls, one after the other, until the answer is complete; raises TandemError."""
        self._retry.progress(time.monotonic())
        while self.response is None:
            error: TandemError = TransportLost("the stream ended before the answer")
            check_open(self._client)
            call = self._call()
            watching = asyncio.create_task(self._cancel_when_silent(call))
            try:
                async for event in call:
                    self._events += 1
                    if event.HasField("complete"):
                        self.response = event.complete
                        return
                    if event.HasField("chunk"):
                        self._retry.progress(time.monotonic())
                        self._received += event.chunk.token_ids
                        self._waiting = False
                        yield event.chunk
                        self._waiting = True
                        self._retry.progress(time.monotonic())
            except aio.AioRpcError as failure:
                error = status.decode(failure)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                error = TransportLost("the front end does not answer")
            finally:
                watching.cancel()
                call.cancel()
            await self._pause(error)

    def _call(self) -> Any:
        request = api.StreamGenerateRequest(
            request=self._request,
            received=self._received,
            heartbeats=True,
        )
        start = self._client.front_ends.stubs[self._retry.asked].StreamGenerate
        metadata = (*self._client.metadata, *tracing.metadata(tracing.current()))
        return start(request, timeout=self._left(), metadata=metadata)

    async def _cancel_when_silent(self, call: Any) -> None:
        """End a call on which not even heartbeats arrive while the caller waits for some; they come
        once the server has the whole request.
        """
        await asyncio.sleep(self._request.ByteSize() / UPLOAD_BYTES_PER_SECOND)
        fronts, retry = self._client.front_ends, self._retry
        await heartbeat.until_silent(
            lambda: self._events if self._waiting else object(),
            limit=lambda: FEW if retry.may_return(fronts.silent) else heartbeat.MISSED,
        )
        fronts.fell_silent(retry.asked)
        call.cancel()

    async def _pause(self, error: TandemError) -> None:
        """Until the next call, which is soon if the front end was not connected and is again;
        raises the error if there shall be none.
        """
        silent = self._client.front_ends.silent
        pause = self._retry.pause(error, time.monotonic(), random.random(), silent)
        if pause is None:
            raise error from None
        left = self._left()
        if left is not None and left <= pause:
            raise DeadlineExceeded("the answer took longer than the deadline") from error
        earliest = pause if isinstance(error, Busy) else EARLIEST * pause
        channel = self._client.front_ends.channels[self._retry.asked]
        reconnected = rpc.reconnected(channel, earliest)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await first_done(self._client.front_ends.closed.wait(), reconnected)

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def check_open(client: AsyncClient) -> None:
    """Raise Unavailable if the client is closed."""
    if client.front_ends.closed.is_set():
        raise Unavailable("the client is closed")
