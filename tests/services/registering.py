"""A front end at which drafters register, drafters that register there, and links to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from grpc import aio
from prometheus_client import CollectorRegistry

from tandem.drafter_service import service as drafter_service
from tandem.drafter_service.registration import registering as register
from tandem.engine.config import ModelServiceConfig
from tandem.models import DRAFT, TARGET
from tandem.orchestrator.fleet.registration import RegistrationService, Registry, Terms
from tandem.orchestrator.links.relays import DrafterLink, proposal_link
from tandem.protos.fingerprint import fingerprint
from tandem.protos.service.drain import Drain
from tandem.protos.transport import heartbeat, rpc
from tandem.protos.transport.health import Health
from tandem.protos.types import ModelDescription
from tandem.protos.wire.registration import TOKEN, encode_registration, registered_name
from tandem.v1 import drafter_pb2, registration_pb2_grpc
from tests.services.peer import Peer, Subscriber, linked, patient
from tests.waiting import LIMIT, until

HOST, SECRET = "127.0.0.1", "a-token-of-some-length"
MODEL = ModelDescription(
    name="a model",
    tokenizer_fingerprint=fingerprint(TARGET),
    vocab_size=4096,
    context_length=512,
    end_token_ids=(0,),
    device="cpu",
    dtype="float32",
    sessions=0,
)
TERMS = Terms(SECRET, 2, MODEL)


async def asked(start: Callable[[], Any], message: Any) -> Any:
    """Return the first reply of a bidirectional call to one message. A call that ends while a
    message is being written loses its status (grpc/grpc#36066), so the call is made again.
    """
    while True:
        call = start()
        try:
            with suppress(asyncio.InvalidStateError):  # the call may have ended already
                await call.write(message)
            return await call.read()
        except aio.AioRpcError as failure:
            if failure.details() != "Internal error from Core":
                raise
        finally:
            call.cancel()


@dataclass
class Front:
    """A front end at which drafters register, and the records of their registrations."""

    address: str = ""
    registry: Any = None
    events: list[tuple[str, str]] = field(default_factory=list)

    @property
    def registered(self) -> list[str]:
        """Return the addresses of the drafters that are registered now."""
        now: list[str] = []
        for event, address in self.events:
            now.append(address) if event == "added" else now.remove(address)
        return now

    async def has(self, count: int) -> list[str]:
        """Wait until this many drafters are registered; return their addresses."""
        await until(lambda: len(self.registered) == count)
        return self.registered


@asynccontextmanager
async def front_end(terms: Terms = TERMS, port: int = 0) -> AsyncIterator[Front]:
    """Run a front end without a client API."""
    front = Front()
    added, removed = ((lambda a, e=e: front.events.append((e, a))) for e in ("added", "removed"))
    front.registry = Registry(added, removed)
    service = RegistrationService(front.registry, terms)
    with patient():
        async with rpc.serving(HOST, port, service) as front.address:
            yield front


def flags(front: Front, **more: str) -> dict[str, str]:
    """Return the settings of a drafter that registers there."""
    return {"register_at": front.address, "register_token": SECRET} | more


async def answering(requests: Any, peer: str) -> AsyncIterator[drafter_pb2.ProposeResponse]:
    """Answer each caller with just enough to count as connected."""
    async for request in requests:
        yield drafter_pb2.ProposeResponse(sent=request.sent)


@asynccontextmanager
async def drafting(
    front: Front, serve: Any = answering, health: Health | None = None, **more: Any
) -> AsyncIterator[None]:
    """Run a drafter that registers, with any service in place of its model."""
    config = ModelServiceConfig(model=DRAFT, **flags(front) | more)
    async with register(config, health or Health(), lambda: MODEL, serve):
        yield


@asynccontextmanager
async def really_drafting(front: Front, **more: Any) -> AsyncIterator[str]:
    """Run a real drafter on this event loop that registers; yields the address of its own port."""
    config = ModelServiceConfig(**{"model": DRAFT, "threads": 1} | flags(front) | more)
    async with drafter_service.serving(config, CollectorRegistry(), Drain(LIMIT)) as address:
        yield address


@asynccontextmanager
async def registering(front: Front, **how: Any) -> AsyncIterator[Any]:
    """Register by hand: send the first message, and heartbeats unless `silent`; yields the call."""
    token, name = how.pop("token", SECRET), how.pop("name", "by-hand")
    silent = how.pop("silent", False)
    async with rpc.connect(front.address) as channel:
        stub: Any = registration_pb2_grpc.RegistrationServiceStub(channel)
        call = stub.Register(metadata=((TOKEN, token),))
        message = encode_registration(name, replace(MODEL, **how))
        with suppress(aio.AioRpcError):  # the call may have been refused already
            await call.write(message)

        async def beat() -> None:
            with suppress(aio.AioRpcError, asyncio.InvalidStateError):
                while not silent:
                    await asyncio.sleep(heartbeat.SECONDS)
                    await call.write(message)

        beating = asyncio.create_task(beat())
        try:
            yield call
        finally:
            beating.cancel()
            call.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@asynccontextmanager
async def linking(front: Front, address: str) -> AsyncIterator[tuple[DrafterLink, Subscriber]]:
    """Connect a link to a registered drafter."""
    proposal = front.registry.calling(registered_name(address))
    async with linked(Peer()) as (verifier, _), proposal_link(proposal, verifier) as link:
        subscriber = Subscriber()
        link.subscribe(subscriber)
        await until(lambda: link.connected)
        yield link, subscriber
