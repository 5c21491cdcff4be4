"""Registration of a drafter that connects to front ends itself, because they cannot reach it.

The drafter registers at each front end, and registers again whenever the call is lost. Requests
arrive on the call that registers the drafter, and are served like requests at the drafter's own
port.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeAlias

import structlog
from grpc import aio

from tandem.engine.config import ModelServiceConfig
from tandem.protos.errors import TransportLost
from tandem.protos.service.tasks import background, first_done
from tandem.protos.transport import heartbeat, rpc, status
from tandem.protos.transport.guard import AUTHORIZATION
from tandem.protos.transport.health import Health
from tandem.protos.types import ModelDescription
from tandem.protos.wire.codec import encode_model
from tandem.protos.wire.registration import TOKEN, encode_registration
from tandem.v1 import drafter_pb2, registration_pb2, registration_pb2_grpc

BACK_OFF_SECONDS = (0.25, 10.0)
DESCRIBE_SECONDS = 1.0  # minimum seconds between two messages that describe the model

Serve: TypeAlias = Callable[
    [AsyncIterator[drafter_pb2.ProposeRequest], str],
    AsyncGenerator[drafter_pb2.ProposeResponse, None],
]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Registrant:
    """A drafter that registers at front ends: the name and description that they get, and the
    function that serves their requests.
    """

    name: str
    metadata: tuple[tuple[str, str], ...]  # metadata of the calls that register the drafter
    health: Health
    describe: Callable[[], ModelDescription]
    serve: Serve


class Registration:
    """The registration of a drafter at one front end. The registration lasts while the drafter can
    serve.
    """

    def __init__(self, drafter: Registrant, address: str, channel: aio.Channel) -> None:
        self._drafter = drafter
        self._address = address
        self._stub: Any = registration_pb2_grpc.RegistrationServiceStub(channel)
        self._received = 0

    async def run(self) -> None:
        """Keep the drafter registered while it can serve: register again whenever the registration
        is lost.
        """
        shortest, longest = BACK_OFF_SECONDS
        pause = shortest
        while True:
            await self._drafter.health.until(True)
            began, problem = monotonic(), "the front end has ended the call"
            try:
                await self._register()
            # whatever error a front end causes, the drafter must connect again
            except Exception as error:
                problem = described(error)
            # the registration lasted for a while, so no other drafter with the same name ended it
            # at once: the next attempt may follow soon
            if monotonic() - began > longest:
                pause = shortest
            if self._drafter.health.serving:
                log.warning("not registered", front_end=self._address, problem=problem)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(longest, 2 * pause)

    async def _register(self) -> None:
        drafter = self._drafter
        call = self._stub.Register(metadata=drafter.metadata)
        try:
            await call.write(encode_registration(drafter.name, drafter.describe()))
            await first_done(self._serve(call), self._watch())
        finally:
            call.cancel()

    async def _serve(self, call: aio.StreamStreamCall[Any, Any]) -> None:
        """Answer the front end's requests until the front end ends the call. At most one message
        every DESCRIBE_SECONDS also carries the current description of the model. While the drafter
        cannot serve, its messages say that it is leaving, so that the front end gives it no new
        sessions.
        """
        drafter, described_at = self._drafter, monotonic()
        async with aclosing(drafter.serve(self._requests(call), self._address)) as responses:
            async for response in responses:
                message = registration_pb2.RegisterRequest(response=response)
                message.leaving = not drafter.health.serving
                if monotonic() - described_at >= DESCRIBE_SECONDS:
                    described_at = monotonic()
                    message.model.CopyFrom(encode_model(drafter.describe()))
                await call.write(message)

    async def _requests(
        self, call: aio.StreamStreamCall[Any, Any]
    ) -> AsyncIterator[drafter_pb2.ProposeRequest]:
        async for response in call:
            self._received += 1
            yield response.request

    async def _watch(self) -> None:
        await heartbeat.until_silent(lambda: self._received)
        raise TransportLost("the front end has stopped responding")


def described(error: Exception) -> str:
    """Return a one-line description of the error that ended a call."""
    return str(status.decode(error) if isinstance(error, aio.AioRpcError) else error) or repr(error)


def chosen_name(config: ModelServiceConfig) -> str:
    """Return the configured name, or the host's name with a random part, so that no two drafters
    share a name.
    """
    host = "".join(c for c in socket.gethostname().split(".")[0] if c.isascii() and c.isalnum())
    return config.register_name or f"{host[:32] or 'drafter'}-{secrets.token_hex(4)}"


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return call metadata with an authentication token: either the token that all drafters of a
    front end share, or the drafter's own token as a client of the front end.
    """
    return ((TOKEN, token), (AUTHORIZATION, f"Bearer {token}")) if token else ()


@asynccontextmanager
async def registering(
    config: ModelServiceConfig,
    health: Health,
    describe: Callable[[], ModelDescription],
    serve: Serve,
) -> AsyncIterator[None]:
    """Inside this context, keep the drafter registered at every front end of `config.register_at`
    whenever `health` reports no problem.
    """
    metadata = _metadata(config.register_token.get_secret_value() if config.register_token else "")
    drafter = Registrant(chosen_name(config), metadata, health, describe, serve)
    addresses = [*filter(None, config.register_at.split(","))]
    channels = [rpc.connect(each, config.tls) for each in addresses]
    runs = [
        Registration(drafter, address, channel).run()
        for address, channel in zip(addresses, channels, strict=True)
    ]
    try:
        async with background(*runs):
            yield
    finally:
        for channel in channels:
            await channel.close()
