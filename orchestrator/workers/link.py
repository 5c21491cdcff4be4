"""One call to one service, which carries all sessions of a round worker; opened anew for ever.

Knows neither facts nor guesses: items go out in as few messages as possible, and what comes in goes
to whoever opened its stream.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

import structlog
from grpc import aio

from orchestrator.rounds.opening import Side
from protos.errors import Internal
from protos.transport import status

BEAT_SECONDS = 0.5  # between messages at the most
SILENT_BEATS = 4  # without a word from the peer, which is lost then
BACK_OFF_SECONDS = (0.05, 1.0)
LEAVING_SECONDS = 2.0
FADING = 32  # answers until a shorter round trip is mostly forgotten
MESSAGE_BYTES = 1 << 20  # what is sent at once, unless one item is larger
MOST_CLOSING = 1 << 16  # sessions that are remembered while there is nobody to be told

Request = TypeVar("Request")
log = structlog.get_logger()


class Link(Generic[Request]):
    """A scope: the call is made, again and again, while it lasts."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        request: type[Request],
        incoming: str,
        stamp: Callable[[Request], None] = lambda request: None,
    ) -> None:
        """`incoming` is the field of a response that has the items; `stamp` completes a request."""
        self.connected = False
        self.round_trip = 0.0  # seconds, smoothed
        self.load = (0.0, 0.0)  # the peer's price and seconds to a token, as far as it has them
        self._name, self._call, self._request, self._incoming = name, call, request, incoming
        self._stamp = stamp
        self._users: dict[Side, None] = {}
        self._streams: dict[int, Side] = {}
        self._outbox: deque[tuple[str, Any]] = deque()
        self._closing: dict[bytes, float] = {}  # when it was sent to whom has not confirmed it
        self._wake = asyncio.Event()
        self._heard = 0  # messages
        self._echoed = 0.0
        self._leaving = False

    async def __aenter__(self) -> Link[Request]:
        self._task = asyncio.create_task(self._stay())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave when all is said, but soon."""
        self._leaving = True
        self._wake.set()
        if self.connected:
            await asyncio.wait((self._task,), timeout=LEAVING_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def join(self, user: Side) -> None:
        """Tell a user from now on when the service comes and goes."""
        self._users[user] = None

    def leave(self, user: Side) -> None:
        """Tell it no more."""
        self._users.pop(user, None)

    def open(self, opening: Any, user: Side) -> None:
        """Open a stream, of the opening's number; what arrives for it is the user's."""
        self._streams[opening.stream] = user
        self.send("open", opening)

    def drop(self, stream: int) -> None:
        """Ignore what still arrives for a stream."""
        self._streams.pop(stream, None)

    def send(self, field: str, item: Any) -> None:
        """Send an item in a field of the next message; in vain while nobody is connected."""
        if self.connected:
            self._outbox.append((field, item))
            self._wake.set()

    def close(self, session_id: bytes) -> None:
        """Have a session forgotten, as soon as somebody can be told."""
        if len(self._closing) < MOST_CLOSING:
            self._closing[session_id] = inf
            self.send("close", session_id)

    async def _stay(self) -> None:
        least, most = BACK_OFF_SECONDS
        pause = least
        while not self._leaving:
            problem = "it is silent, or has ended the call"
            try:
                await self._hold()
            except Exception as error:  # whatever a peer does, the link must come back
                problem = _problem(error)
            if self.connected:
                pause = least
                self._disconnect()
            if not self._leaving:
                log.warning("a service is lost", service=self._name, problem=problem)
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(most, 2 * pause)

    async def _hold(self) -> None:
        """One call, until it or the peer's words end."""
        call = self._call(wait_for_ready=True)
        tasks: list[asyncio.Task[None]] = []
        try:
            await call.wait_for_connection()
            self._wake.set()
            work = self._read(call), self._write(call), self._watch()
            tasks += [asyncio.create_task(each) for each in work]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            call.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        """Say something now and then; returns when the peer does not. Counts beats, not seconds:
        this process may be the one that was held up.
        """
        silent = 0
        while silent < SILENT_BEATS:
            heard = self._heard
            await asyncio.sleep(BEAT_SECONDS)
            self._wake.set()
            silent = silent + 1 if heard == self._heard else 0

    async def _write(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        while not self._leaving or self._outbox:
            if not self._outbox:
                await self._wake.wait()
                self._wake.clear()
            await call.write(self._message())
        await call.done_writing()
        await asyncio.Event().wait()  # the peer ends the call, or is too slow

    def _message(self) -> Any:
        """As much of the outbox as goes into one message."""
        message: Any = self._request(sent=monotonic())  # type: ignore[call-arg]
        self._stamp(message)
        room = MESSAGE_BYTES
        while self._outbox:
            field, item = self._outbox[0]
            size = len(item) if field == "close" else item.ByteSize()
            if size > room and room < MESSAGE_BYTES:
                break
            room -= size
            getattr(message, field).append(item)
            self._outbox.popleft()
            if field == "close":
                self._closing[item] = message.sent
        return message

    async def _read(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        async for response in call:
            self._receive(response)

    def _receive(self, response: Any) -> None:
        self._heard += 1
        if not self.connected:
            self._connect()
        if self._echoed < response.sent <= monotonic():
            self._confirm(response.sent, bool(getattr(response, self._incoming)))
        self.load = getattr(response, "price", 0.0), getattr(response, "token_seconds", 0.0)
        for item in getattr(response, self._incoming):
            if user := self._streams.get(item.stream):
                self._hand(user.receive, item)
        for failure in response.failures:
            if user := self._streams.pop(failure.stream, None):
                self._hand(user.failed, status.unpack(failure.status))

    def _hand(self, take: Callable[[Any], None], item: Any) -> None:
        """One user's bug is not the others'."""
        try:
            take(item)
        except Exception as error:
            log.error("a session failed", service=self._name, exc_info=error)
            if user := self._streams.pop(getattr(item, "stream", 0), None):
                user.failed(Internal("internal error; see the server's log"))

    def _confirm(self, sent: float, busy: bool) -> None:
        """The peer has got everything up to this clock. It answers when it has something to say, so
        the shortest times are the true ones, and those of one that is not `busy` tell nothing.
        """
        self._echoed = sent
        trip = monotonic() - sent
        known = self.round_trip or trip
        self.round_trip = min(trip, known + busy * (trip - known) / FADING)
        if self._closing:
            self._closing = {i: at for i, at in self._closing.items() if at > sent}

    def _connect(self) -> None:
        self.connected = True
        for session_id in list(self._closing):
            self.close(session_id)
        for user in list(self._users):
            user.connected()

    def _disconnect(self) -> None:
        self.connected = False
        self._outbox.clear()
        self._streams.clear()
        for user in list(self._users):
            user.lost()


def _problem(error: Exception) -> str:
    if isinstance(error, aio.AioRpcError):
        with suppress(Exception):
            return str(status.decode(error))
    return type(error).__name__
