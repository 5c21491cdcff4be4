"""Find every method of every service in the schemas, and call methods with generated messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc import aio

from tandem.benchmarks.fuzz.messages import change
from tandem.protos.transport.status import is_cancelled
from tandem.v1 import (
    drafter_pb2,
    orchestrator_pb2,
    registration_pb2,
    verifier_pb2,
)

MODULES = (orchestrator_pb2, verifier_pb2, drafter_pb2, registration_pb2)
SECONDS = 1.0  # timeout of a call
ENDED_WHILE_SENDING = "Internal error from Core"  # error text of the client's gRPC library
MAX_RESPONSES = 40  # a call is cancelled after this many responses
MESSAGE_COUNTS = (1, 1, 2, 3)  # possible numbers of messages in a request stream
GARBLED = 0.03  # share of messages that are random bytes


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method, identified by its full name. Generated messages are modified copies of
    `base`.
    """

    path: str
    takes_stream: bool
    gives_stream: bool
    base: Message

    @property
    def service(self) -> str:
        """The name of the service without its package."""
        return self.path.split("/")[1].rpartition(".")[2]

    def messages(self, rng: Random) -> list[bytes]:
        """Generate the request messages of one call."""
        count = rng.choice(MESSAGE_COUNTS) if self.takes_stream else 1
        return [self._message(rng) for _ in range(count)]

    def _message(self, rng: Random) -> bytes:
        message = type(self.base)()
        message.CopyFrom(self.base)
        change(message, rng)
        packed = message.SerializeToString()
        return rng.randbytes(len(packed) + 3) if rng.random() < GARBLED else packed


def methods() -> Iterator[Method]:
    """Yield the methods of all schemas."""
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                base = message_factory.GetMessageClass(method.input_type)()
                path = f"/{service.full_name}/{method.name}"
                yield Method(path, method.client_streaming, method.server_streaming, _valid(base))


def _valid(base: Message) -> Message:
    generation: Any = base
    if isinstance(base, orchestrator_pb2.StreamGenerateRequest):
        generation = base.request
    if isinstance(generation, orchestrator_pb2.GenerateRequest):
        generation.text, generation.stopping.max_new_tokens = "Once", 2
    return base


async def call(
    channel: aio.Channel, method: Method, sent: Sequence[bytes], metadata: Any = ()
) -> tuple[str, str]:
    """Call a method, and end the call if it takes too long or returns too many responses. Returns
    the status name and message.
    """
    kind = f"{'stream' if method.takes_stream else 'unary'}_"
    kind += "stream" if method.gives_stream else "unary"
    invoke: Any = getattr(channel, kind)(method.path)
    argument = _each(sent) if method.takes_stream else sent[0]
    running = invoke(argument, timeout=SECONDS, metadata=metadata)
    try:
        if method.gives_stream:
            count = 0
            async for _ in running:
                count += 1
                if count == MAX_RESPONSES:
                    running.cancel()
                    break
        else:
            await running
    except aio.AioRpcError as error:
        own = error.details() == ENDED_WHILE_SENDING
        return "ended while sending" if own else error.code().name, error.details() or ""
    except asyncio.CancelledError:
        if is_cancelled():
            raise
    return grpc.StatusCode.OK.name, ""


async def _each(sent: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in sent:
        yield message
