"""The asyncio client.

If a stream breaks, the client retries the request at any front end and sends the tokens that it has
already received, so the caller sees one stream without gaps or repetitions.
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
FAILBACK_MISSED = 2  # heartbeats a call may miss if the previously used front end has recovered
# minimum fraction of a retry's pause that is waited even if the front end reconnects sooner
MIN_PAUSE_FRACTION = 0.25


class AsyncClient:
    """Client for asyncio. Each request goes to a randomly chosen front end that responds. If that
    front end fails or has no capacity, the request goes to the next one.

    Args:
        addresses: Front ends that serve the same model, by default 127.0.0.1:50051.
        retry_seconds: Seconds without progress after which a request is given up.
        tls_ca: PEM file of the CA that signed the certificates of the front ends.
        tls_cert: PEM file of the client's own certificate, if it has one.
        tls_key: PEM file of the key of `tls_cert`.
        token: The client's token, if it has no certificate.

    Raises Unusable if a TLS file cannot be used, or if the token would be sent to another machine
    without TLS.
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
        """Return the whole answer. The options and errors are the same as for `stream`."""
        async with self.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
        assert stream.response is not None, "without a response, the stream would have raised"
        return stream.response

    def stream(
        self, prompt: Prompt, *, deadline_seconds: float | None = None, **options: Any
    ) -> Stream:
        """Return the answer's chunks as a stream. The iteration raises TandemError on failure.

        Args:
            prompt: A text, token ids, or the messages of a chat.
            deadline_seconds: Maximum time until the answer is complete.
            options: Fields of Sampling, Stopping and Speculation by their names, and `logprobs`,
                `prompt_logprobs`, `echo` and `return_token_ids`. A chat also accepts `tools`,
                `tool_choice`, `parallel_tool_calls`, `add_generation_prompt`,
                `continue_final_message`, `chat_template_kwargs` and `reasoning_effort`.

        Raises:
            TypeError, InvalidRequest: An option does not exist, or does not accept its value.
        """
        return Stream(self, build(prompt, **options), deadline_seconds)

    async def status(self, *, history: bool = False) -> api.GetStatusResponse:
        """Return the status of the models from the first front end that answers. With `history`, it
        includes the metrics of the last minutes. Raises TandemError if no front end answers.
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
        """Close all connections. Running streams raise Unavailable."""
        await self.front_ends.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


class Stream:
    """Yields the chunks of an answer. After the last chunk, `response` holds the whole answer."""

    def __init__(
        self, client: AsyncClient, request: api.GenerateRequest, deadline_seconds: float | None
    ) -> None:
        now = time.monotonic()
        self.response: api.GenerateResponse | None = None
        self._client = client
        self._request = request
        self._received: list[int] = []  # token ids received so far
        self._events = 0  # number of received events, including heartbeats
        self._waiting = True  # whether the caller waits for a chunk
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
        """Cancel the request, so that the rest of the answer is not generated."""
        await self._chunks.aclose()

    async def _all(self) -> AsyncGenerator[api.Chunk, None]:
        """Yield the answer's chunks, with retries after failures. Raises TandemError."""
        self._retry.progress(time.monotonic())
        while self.response is None:
            error: TandemError = TransportLost("the stream ended before the answer was complete")
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
            request=self._request, received=self._received, heartbeats=True
        )
        start = self._client.front_ends.stubs[self._retry.asked].StreamGenerate
        metadata = (*self._client.metadata, *tracing.metadata(tracing.current()))
        return start(request, timeout=self._left(), metadata=metadata)

    async def _cancel_when_silent(self, call: Any) -> None:
        """Cancel a call if nothing arrives, not even a heartbeat, while the caller waits for a
        chunk. The server sends heartbeats only after it has received the whole request.
        """
        await asyncio.sleep(self._request.ByteSize() / heartbeat.SLOWEST_CONNECTION)
        fronts, retry = self._client.front_ends, self._retry
        await heartbeat.until_silent(
            lambda: self._events if self._waiting else object(),
            limit=lambda: (
                FAILBACK_MISSED if retry.may_return(fronts.silent) else heartbeat.MAX_MISSED
            ),
        )
        fronts.fell_silent(retry.asked)
        call.cancel()

    async def _pause(self, error: TandemError) -> None:
        """Wait before the next retry. The wait ends early if the front end is reconnected. Raises
        `error` if the request is given up, and DeadlineExceeded if the deadline passes before the
        retry.
        """
        silent = self._client.front_ends.silent
        pause = self._retry.pause(error, time.monotonic(), random.random(), silent)
        if pause is None:
            raise error from None
        left = self._left()
        if left is not None and left <= pause:
            raise DeadlineExceeded("the answer took longer than the deadline") from error
        earliest = pause if isinstance(error, Busy) else MIN_PAUSE_FRACTION * pause
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
