"""gRPC credentials from certificate files. When the files change, ports get new credentials, and
new calls use a new channel. Running calls continue on their old channel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeAlias, cast

import grpc
from grpc import aio

from tandem.protos.address import DNS, split
from tandem.protos.tls import CertificateFiles, Pem, Tls

Fetch: TypeAlias = Callable[[], grpc.ServerCertificateConfiguration]
_FILES: dict[Tls, CertificateFiles] = {}  # certificate files that this process has loaded
_REFRESHING = threading.Lock()  # held while files are read; handshakes run in several threads


def _newest(tls: Tls) -> Pem:
    """Return the newest valid contents of the files; raises Unusable if they were never valid."""
    with _REFRESHING:
        if files := _FILES.get(tls):
            files.refresh()
        else:
            files = _FILES[tls] = CertificateFiles(tls)
        return files.pem


def port_credentials(tls: Tls, certificates: bool) -> grpc.ServerCredentials:
    """Return the server credentials of a port. If `certificates` is set, callers must have
    certificates. Otherwise callers are not asked for them, because gRPC for Python has no optional
    certificates. Raises Unusable.
    """
    used = _newest(tls)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Return new credentials, or None if nothing has changed. gRPC calls this before every
        handshake.
        """
        nonlocal used
        if (pem := _newest(tls)) == used:
            return None
        used = pem
        return _configuration(pem)

    first, again = _configuration(used), cast(Fetch, fetch)  # grpc's type stub lacks None
    return grpc.dynamic_ssl_server_credentials(first, again, certificates)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.key and pem.cert, "a port has a certificate"
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)


def server_name(address: str, role: str) -> str:
    """Return the name that a peer's certificate must contain. This name is the host of the
    peer's address. If the host is an IP address, which may change, the name is the peer's role.
    """
    host, _ = split(address.removeprefix(DNS))
    try:
        ip_address(host)
    except ValueError:
        return host
    return role


@dataclass(slots=True, eq=False)
class VersionedChannel:
    """A channel with one version of the certificates, and the number of calls that run on it."""

    channel: aio.Channel
    pem: Pem
    calls: int = 0
    methods: dict[tuple[str, str], Any] = field(default_factory=dict)


class RotatingChannel(aio.Channel):
    """A channel on which each call uses the certificates that are newest when the call begins."""

    def __init__(self, tls: Tls, open_channel: Callable[[grpc.ChannelCredentials], aio.Channel]):
        """Open a channel with the current certificates. Raises Unusable."""
        self._tls = tls
        self._open_channel = open_channel
        self._latest = self._opened(_newest(tls))
        self._older: set[VersionedChannel] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def _opened(self, pem: Pem) -> VersionedChannel:
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        return VersionedChannel(self._open_channel(credentials), pem)

    def current(self) -> VersionedChannel:
        """Return the channel for a new call, which has the newest certificates."""
        if (pem := _newest(self._tls)) != self._latest.pem:
            older, self._latest = self._latest, self._opened(pem)
            self._older.add(older)
            self._close_unused(older)
        return self._latest

    def released(self, version: VersionedChannel) -> None:
        """Record that a call on a channel has ended. An outdated channel closes after its last
        call.
        """
        version.calls -= 1
        self._close_unused(version)

    def _close_unused(self, version: VersionedChannel) -> None:
        if version in self._older and not version.calls:
            self._older.discard(version)
            task = asyncio.ensure_future(version.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _method(self, kind: str, path: str, *serialisers: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            version = self.current()
            if not (method := version.methods.get((kind, path))):
                method = getattr(version.channel, kind)(path, *serialisers)
                version.methods[kind, path] = method
            begun = method(*arguments, **more)
            version.calls += 1
            begun.add_done_callback(lambda _: self.released(version))
            return begun

        return call

    def unary_unary(self, method: str, *serialisers: Any, **more: Any) -> Any:
        """Return a callable for a method with one request and one response."""
        return self._method("unary_unary", method, *_both(*serialisers, **more))

    def unary_stream(self, method: str, *serialisers: Any, **more: Any) -> Any:
        """Return a callable for a method with one request and a stream of responses."""
        return self._method("unary_stream", method, *_both(*serialisers, **more))

    def stream_unary(self, method: str, *serialisers: Any, **more: Any) -> Any:
        """Return a callable for a method with a stream of requests and one response."""
        return self._method("stream_unary", method, *_both(*serialisers, **more))

    def stream_stream(self, method: str, *serialisers: Any, **more: Any) -> Any:
        """Return a callable for a method with streams of requests and responses."""
        return self._method("stream_stream", method, *_both(*serialisers, **more))

    async def close(self, grace: float | None = None) -> None:
        """End all calls, after `grace` seconds at the latest."""
        channels = [each.channel for each in (*self._older, self._latest)]
        self._older.clear()
        await asyncio.gather(*(channel.close(grace) for channel in channels), *self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the connectivity state of the channel that a new call would use."""
        return self.current().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the state of the newest channel differs from `last_observed_state`."""
        await self._latest.channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the channel that a new call would use is connected."""
        await self.current().channel.channel_ready()

    async def __aenter__(self) -> RotatingChannel:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()


def _both(
    request_serializer: Any = None, response_deserializer: Any = None, **_: Any
) -> tuple[Any, Any]:
    return request_serializer, response_deserializer
