"""A Tandem system with known clients, every method of its services, and the status code that a call
gets.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client import CollectorRegistry

from tandem import models
from tandem.drafter_service import service as drafter_service
from tandem.engine.config import ModelServiceConfig
from tandem.protos.tls import Tls
from tandem.protos.transport import rpc
from tandem.protos.transport.guard import AUTHORIZATION
from tandem.v1 import drafter_pb2, orchestrator_pb2, registration_pb2, verifier_pb2
from tests.certificates import made, settings
from tests.services.protected import Protected, protected
from tests.services.registering import asked
from tests.waiting import LIMIT, until

ALICE, BOB = "a-token-that-only-alice-has", "a-token-that-only-bob-has"
OK, DENIED = grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN, LOST = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE
FILES = (drafter_pb2, orchestrator_pb2, registration_pb2, verifier_pb2, reflection_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
CLIENT_API = {name for name in METHODS if "Orchestrator" in name}
REGISTRATION = {name for name in METHODS if "Registration" in name}
DRAFTING = {name for name in METHODS if "DrafterService" in name}
VERIFYING = {name for name in METHODS if "Verifier" in name}
REFLECTION = {name for name in METHODS if "reflection" in name}


def entry(name: str, token: str) -> str:
    return f"{name}: {{token_sha256: {hashlib.sha256(token.encode()).hexdigest()}}}\n"


PHONE = "phone: {certificate: phone, may: [register]}\n"
CERTIFIED = "certified: {certificate: client}\n"


@dataclass
class Known:
    """A system, its file of clients, and the addresses for callers with certificates."""

    system: Protected
    clients: Path
    certificates: str
    http: str = ""

    def write(self, *entries: str) -> None:
        self.clients.write_text("".join(entries))

    def all(self) -> None:
        """Let everybody call."""
        self.write(entry("alice", ALICE), entry("bob", BOB), PHONE, CERTIFIED)


@asynccontextmanager
async def known_clients(folder: Path) -> AsyncIterator[Known]:
    """Run the whole system, with certificates in a folder."""
    made(folder, "phone", "stranger")
    port, file = rpc.free_port("127.0.0.1"), folder / "clients.yaml"
    known = Known(None, file, f"127.0.0.1:{port}")  # type: ignore[arg-type]
    known.all()
    http = rpc.free_port("127.0.0.1")
    known.http = f"https://127.0.0.1:{http}"
    async with (
        protected(folder, clients=file, certificate_port=port, http_port=http) as known.system,
        at_home(known),
    ):
        yield known


@asynccontextmanager
async def at_home(known: Known) -> AsyncIterator[None]:
    """Run a drafter that registers with a certificate and without a token."""
    config = ModelServiceConfig(
        model=models.DRAFT,
        threads=1,
        register_at=known.certificates,
        register_name="at-home",
        **settings(known.system.folder, "phone"),
    )
    async with drafter_service.serving(config, CollectorRegistry()):
        await until(lambda: drafters(known))
        yield


async def drafters(known: Known) -> dict[str, str]:
    """Return the addresses of the registered drafters, by their names."""
    async with known.system.with_token(ALICE) as client:
        (model,) = (await client.status()).models
    found = [each.address.partition("@") for each in model.drafters if "@" in each.address]
    return {name: address for name, _, address in found}


async def ask(channel: aio.Channel, path: str, **metadata: str) -> grpc.StatusCode:
    """Return the status code of a call with an empty message; OK if the call reached the method."""
    method = METHODS[path]
    given = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    streams = method.client_streaming, method.server_streaming
    kind = "_".join("stream" if stream else "unary" for stream in streams)
    start = partial(getattr(channel, kind)(path), timeout=LIMIT, metadata=given)
    try:
        if streams[0]:
            await asked(start, b"")
        else:
            call = start(b"")
            await (call.read() if streams[1] else call)
            call.cancel()
    except aio.AioRpcError as failure:
        got_through = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
        return OK if failure.code() in got_through else failure.code()
    return OK


async def codes(
    address: str, tls: Tls | None, role: str, paths: set[str], **metadata: str
) -> set[grpc.StatusCode]:
    """Return the status codes of all those methods."""
    async with rpc.connect(address, tls, role) as channel:
        return {await ask(channel, path, **metadata) for path in sorted(paths)}


def bearer(token: str) -> dict[str, str]:
    return {AUTHORIZATION: f"Bearer {token}"}
